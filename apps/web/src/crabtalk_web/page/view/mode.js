// The mode of a conversation: how much the agent may do without asking. A button below the composer
// shows it; a dialog explains each mode and lets the person choose.

import { h, setText } from "../draw/dom.js";
import { icon } from "./icons.js";
import { actions, button } from "./controls.js";
import { openDialog } from "./dialog.js";
import { announce } from "./notices.js";
import { attempt, problemLine } from "./task.js";

let drawn = 0;

export class ModeButton {
  #session;
  #name = h("span", { class: "mode-name" });
  #about = h("span", { class: "mode-about" });

  constructor(session) {
    this.#session = session;
    this.element = h("p", { class: "mode", hidden: true },
      button(["Mode: ", this.#name, icon("chevron")], () => chooseMode(session), "quiet small",
        { "aria-haspopup": "dialog" }),
      this.#about);
  }

  draw() {
    const { mode, modes, continuedBy } = this.#session;
    this.element.hidden = !mode || modes.length === 0 || Boolean(continuedBy);
    const current = modes.find(({ code }) => code === mode);
    setText(this.#name, current?.name ?? mode);
    setText(this.#about, current?.about ?? "");
  }
}

/** Nothing changes before the button is pressed: arrow keys only move between the modes. */
async function chooseMode(session) {
  drawn += 1;
  const name = `mode-${drawn}`;
  const inputs = session.modes.map((mode) => h("input", {
    type: "radio", name, id: `${name}-${mode.code}`, value: mode.code,
    "aria-describedby": `${name}-${mode.code}-about`, checked: mode.code === session.mode,
  }));
  const rows = session.modes.map((mode, at) => h("div", { class: "option" }, inputs[at],
    h("label", { for: inputs[at].id }, mode.name),
    h("p", { id: `${inputs[at].id}-about`, class: "option-about" }, mode.about)));
  const problem = problemLine();
  const chosen = await openDialog("Mode", (close) => {
    const set = button("Use this mode", async () => {
      const mode = inputs.find((input) => input.checked)?.value;
      if (mode === session.mode) return close();
      if (await attempt(set, "Changing", problem, () => session.setMode(mode))) close(mode);
    }, "primary");
    return [
      h("p", { class: "muted" }, `How much ${session.agent} may do without asking you, in this `
        + "conversation."),
      h("fieldset", { class: "modes", "aria-label": "Mode" }, rows),
      problem,
      actions(button("Cancel", () => close()), set),
    ];
  });
  if (chosen) announce(`Mode: ${chosen}.`);
}
