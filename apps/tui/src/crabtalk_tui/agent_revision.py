"""A revision of an agent: what it was when somebody began to change it, and what it becomes."""

import json
from pathlib import Path

from crabtalk.component.command import one_line

from .agent_editing import ObjectionError
from .agent_file import written_prompt
from .agent_page import page_of, read_page
from .complaints import CommandError
from .options import daemon
from .stores import known

NAMES = "`crabtalk agents list` has the names"


class Revision:
    def __init__(self, home: Path | None, name: str) -> None:
        with daemon(home) as client, known(NAMES):
            self.info = client.get_agent(name)
        self._home = home
        self._name = name
        self._prompt = written_prompt(home, name)

    @property
    def page(self) -> str:
        return page_of(json.loads(self.info.config), self._prompt)

    def apply(self, text: str) -> None:
        """Raises ObjectionError for a page that cannot be taken, CommandError when the agent is no
        longer what it was; then nothing has changed. `info` is the agent afterwards."""
        from crabtalk.client import ServerError

        try:
            settings, prompt = read_page(text)
        except CommandError as error:
            raise ObjectionError(str(error)) from None
        if unknown := sorted(settings.keys() - json.loads(self.info.config)):
            raise ObjectionError(
                f"no agent has {', '.join(map(one_line, unknown))}; check the spelling"
            )
        if prompt is not None and not prompt.strip():
            raise ObjectionError("the prompt is empty; leave it out to keep the one there is")
        with daemon(self._home) as client:
            with known(NAMES):
                now = client.get_agent(self._name)
            if (now.config, written_prompt(self._home, self._name)) != (
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
                raise ObjectionError(error.message) from None
