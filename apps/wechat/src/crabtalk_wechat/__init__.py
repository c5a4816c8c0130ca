"""The `crabtalk-wechat` program: a client of the daemon that has people talk to agents in
WeChat."""

__version__ = "0.1.0"
