"""One edit of an agent: its state before the edit, and how the edit is applied.

An edit is refused if the agent was changed meanwhile.
"""

import json
from pathlib import Path

from crabtalk.service.command_line import to_one_line

from .agent_file import read_prompt
from .agent_toml import parse_agent, render_agent
from .editor import InvalidEditError
from .errors import CommandError
from .memory_sources import explain_not_found
from .options import connect_daemon

LIST_HINT = "`crabtalk agents list` has the names"


class AgentRevision:
    def __init__(self, home: Path | None, name: str) -> None:
        with connect_daemon(home) as client, explain_not_found(LIST_HINT):
            self.info = client.get_agent(name)
        self._home = home
        self._name = name
        self._prompt = read_prompt(home, name)

    @property
    def toml(self) -> str:
        return render_agent(json.loads(self.info.config), self._prompt)

    def apply(self, text: str) -> None:
        """Update the agent from the edited page; `info` is the agent afterwards.

        Raises InvalidEditError for a page the daemon cannot accept, and CommandError when the
        agent was changed meanwhile. In both cases nothing has changed.
        """
        from crabtalk.client import ServerError

        try:
            settings, prompt = parse_agent(text)
        except CommandError as error:
            raise InvalidEditError(str(error)) from None
        if unknown := sorted(settings.keys() - json.loads(self.info.config)):
            raise InvalidEditError(
                f"no agent has {', '.join(map(to_one_line, unknown))}; check the spelling"
            )
        if prompt is not None and not prompt.strip():
            raise InvalidEditError("the prompt is empty; leave it out to keep the one there is")
        with connect_daemon(self._home) as client:
            with explain_not_found(LIST_HINT):
                current = client.get_agent(self._name)
            if (current.config, read_prompt(self._home, self._name)) != (
                self.info.config,
                self._prompt,
            ):
                raise CommandError(
                    f"{self._name} has been changed meanwhile, and is left as it is; "
                    "`crabtalk agents edit --config FILE` puts yours in its place"
                )
            try:
                self.info = client.update_agent(self._name, settings, prompt=prompt or "")
            except ServerError as error:
                if error.code != 400:
                    raise
                raise InvalidEditError(error.message) from None
