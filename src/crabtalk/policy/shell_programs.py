"""Programs that run other programs or program texts, by how they do it."""

from .shell_commands import name_set

SHELLS = name_set("ash bash dash fish hush ksh ksh93 lksh mksh rbash sh yash zsh")
# Programs that run a program text of their own language, from stdin if there is no argument.
INTERPRETERS = name_set(
    "bun deno irb julia lua luajit node nodejs osascript perl php python python2 "
    "python3 pypy pypy3 R Rscript ruby tclsh wish guile gdb ghci ipython sqlite3 bc"
)
STDIN_PROGRAMS = name_set("ed ex expect")
GUESSED = name_set(
    "abduco bubblewrap bwrap caffeinate capsh catchsegv cgexec choom chpst chronic "
    "cpulimit daemonize dbus-run-session distrobox dtach dumb-init eatmydata entr "
    "envdir envuidgid fakechroot fakeroot fdmove firejail gdbserver gosu gpg-agent "
    "heaptrack hyperfine i386 ifne linux32 linux64 lldb ltrace machinectl mosh newgrp "
    "nix-shell npx nq nsenter numactl parallel-ssh pee perf pkexec pnpx prlimit proot "
    "proxychains proxychains4 pssh reptyr rlwrap rr run-parts run0 s6-setuidgid "
    "screen sem setarch setuidgid sg softlimit ssh-agent sshpass start-stop-daemon "
    "su-exec systemd-inhibit systemd-run tini tmux toolbox torify torsocks tsocks tsp "
    "unbuffer uvx valgrind winpty x86_64 xvfb-run"
)
# These run a program only with some subcommands; with the others their words are names of packages.
MANAGERS = name_set(
    "aws buildah bundle conda direnv docker flatpak kubectl lxc mamba micromamba mise "
    "nerdctl nix npm pdm pipenv pipx pixi pnpm podman poetry rye uv vagrant yarn"
)
MANAGER_RUNS = name_set(
    "compose container create debug develop dlx exec explore run shell ssh tool x "
    "--command --run -c run-script"
)
# Programs of which some options hold a command.
OPTION_TEXTS = name_set(
    "tar bsdtar rsync sort split zip man less git scp sftp curl wget cpio mutt "
    "openssl nc ncat netcat cargo go rustup cmake ctest gcc cc clang g++ pip pip3 "
    "journalctl systemctl dpkg apt apt-get vim vi view vimdiff nvim ex emacs nano ssh "
    "fzf bat ctags gh hg svn dstat tcpdump wall ansible puppet logrotate "
    "logsave msgattrib msgfilter xdg-open xdotool zathura screen docker make gmake"
)
GIT_RUNNERS = name_set(
    "bisect config difftool filter-branch for-each-repo mergetool rebase submodule send-email"
)
BUILTIN_RUNNERS = name_set("alias bind compgen complete enable hash mapfile readarray")
BUILTINS = name_set(". : [ alias bind builtin command coproc eval exec export set source test trap")
