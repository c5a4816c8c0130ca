// Settings: the look, devices and machines of the account, backup words, and leaving.

import { h } from "../draw/dom.js";
import { confirmed } from "./dialog.js";
import { devicesSection } from "./devices.js";
import { icon } from "./icons.js";
import { notify } from "./notices.js";
import { showKeys } from "./shortcuts.js";
import { attempt, isBusy, problemLine } from "./task.js";
import { THEMES, chooseTheme, chosenTheme } from "./theme.js";

const WIPED = [
  "This removes your keys, all conversations, drafts and files from this browser, and takes its token away at the relay.",
  "Your machines and other devices go on. To come back you need another device of yours, or your backup words.",
];

/** @param {{back: () => void, out: () => void}} ways */
export function settingsView(device, { back, out }) {
  const devices = devicesSection(device);
  const element = h("div", { class: "conversation" },
    h("header", { class: "head" },
      h("button", { class: "icon-button", type: "button", "aria-label": "Back", onclick: back }, icon("back")),
      h("h1", {}, "Settings")),
    h("div", { class: "scroll", tabindex: "-1" },
      h("div", { class: "sheet settings" },
        section("Look", themeChoice()),
        devices.element,
        section("Backup words", backup(device)),
        section("Keys", h("div", { class: "actions" },
          h("button", { class: "button", type: "button", onclick: showKeys }, "Show keyboard shortcuts"))),
        section("Log out", logOut(device, out)))));
  return { element, title: "Settings", close: devices.close };
}

export function section(title, ...parts) {
  return h("section", { class: "stack" }, h("h2", {}, title), parts);
}

function themeChoice() {
  const chosen = chosenTheme();
  return h("fieldset", { class: "choices" },
    h("legend", { class: "visually-hidden" }, "Theme"),
    THEMES.map(({ id, label }) => h("label", { class: "choice" },
      h("input", { type: "radio", name: "theme", value: id, checked: id === chosen, onchange: () => chooseTheme(id) }),
      h("span", {}, label))));
}

function backup(device) {
  const problem = problemLine();
  const place = h("div", { class: "stack" });
  const button = h("button", { class: "button", type: "button" }, "Show backup words");
  button.addEventListener("click", async () => {
    if (isBusy(button)) return;
    const isSure = await confirmed({
      title: "Show your backup words?",
      text: "Whoever sees them can read and write everything in your name, and they cannot be changed. Make sure nobody looks on.",
      yes: "Show them",
    });
    if (!isSure) return;
    await attempt(button, "Opening", problem, async () => {
      const words = await device.backupWords();
      place.replaceChildren(...shownWords(words, () => place.replaceChildren(button)));
      place.querySelector("code").focus();
    });
  });
  place.append(button);
  return [
    h("p", { class: "muted" }, "They are your account. With them you get back in when every device is lost; nobody else can help then. Write them down on paper."),
    place,
    problem,
  ];
}

function shownWords(words, hide) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(words);
      notify("Copied. Clear your clipboard when you are done.");
    } catch {
      notify("The browser did not let this be copied.");
    }
  };
  return [
    h("code", { class: "words", tabindex: "-1" }, words),
    h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: copy }, "Copy"),
      h("button", { class: "button quiet", type: "button", onclick: hide }, "Hide")),
  ];
}

function logOut(device, out) {
  const problem = problemLine();
  const button = h("button", { class: "button danger", type: "button" }, "Log out");
  button.addEventListener("click", async () => {
    if (isBusy(button)) return;
    if (!(await confirmed({ title: "Log out of this browser?", text: WIPED, yes: "Log out", danger: true }))) return;
    const isOut = await attempt(button, "Wiping", problem, () => device.logOut());
    if (isOut) out();
  });
  return [h("p", { class: "muted" }, WIPED[0]), h("div", { class: "actions" }, button), problem];
}
