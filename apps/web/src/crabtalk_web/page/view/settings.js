// Settings: theme, devices and machines, backup text, and logging out.

import { h } from "../draw/dom.js";
import { actions, button, paneHead } from "./controls.js";
import { confirmed } from "./dialog.js";
import { devicesSection } from "./devices.js";
import { notify } from "./notices.js";
import { showKeys } from "./shortcuts.js";
import { attempt, problemLine } from "./task.js";
import { THEMES, chooseTheme, chosenTheme } from "./theme.js";

const WIPED = "This removes your keys, all conversations, files, drafts and what is still to be sent "
  + "from this browser, and takes its token away at the relay.";
const STAYS = "Your machines and other devices go on. To come back you need another device of "
  + "yours, or your backup words.";
const WORDS_ARE = "They are your account. With them you get back in when every device is lost; "
  + "no one else can help then. Write them down on paper.";
const WORDS_SEEN = "Anyone who sees them can read and write everything in your name, and they "
  + "cannot be changed. Make sure that no one is watching.";

/** @param {{back: () => void, out: () => void}} ways */
export function settingsView(device, { back, out }) {
  const devices = devicesSection(device);
  const element = h("div", { class: "conversation" },
    paneHead(back, h("h1", {}, "Settings")),
    h("div", { class: "scroll", tabindex: "-1" },
      h("div", { class: "sheet settings" },
        section("Look", themeChoice()),
        devices.element,
        section("Backup words", backup(device)),
        section("Keys", actions(button("Show keyboard shortcuts", showKeys))),
        section("Log out", logOut(device, out)))));
  return { element, title: "Settings", close: devices.close };
}

function section(title, ...parts) {
  return h("section", { class: "stack" }, h("h2", {}, title), parts);
}

function themeChoice() {
  const chosen = chosenTheme();
  const choice = ({ id, label }) => h("label", { class: "choice" },
    h("input", {
      type: "radio", name: "theme", value: id, checked: id === chosen,
      onchange: () => chooseTheme(id),
    }),
    h("span", {}, label));
  return h("fieldset", { class: "choices" },
    h("legend", { class: "visually-hidden" }, "Theme"), THEMES.map(choice));
}

function backup(device) {
  const problem = problemLine();
  const place = h("div", { class: "stack" });
  const show = button("Show backup words", async () => {
    const asked = { title: "Show your backup words?", text: WORDS_SEEN, yes: "Show them" };
    if (!(await confirmed(asked))) return;
    await attempt(show, "Opening", problem, async () => {
      const words = await device.backupWords();
      place.replaceChildren(...shownWords(words, () => place.replaceChildren(show)));
      place.querySelector("code").focus();
    });
  });
  place.append(show);
  return [h("p", { class: "muted" }, WORDS_ARE), place, problem];
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
    actions(button("Copy", copy), button("Hide", hide, "quiet")),
  ];
}

function logOut(device, out) {
  const problem = problemLine();
  const leave = button("Log out", async () => {
    const asked = { title: "Log out of this browser?", text: [WIPED, STAYS], yes: "Log out" };
    if (!(await confirmed({ ...asked, danger: true }))) return;
    if (await attempt(leave, "Wiping", problem, () => device.logOut())) out();
  }, "danger");
  return [h("p", { class: "muted" }, WIPED), actions(leave), problem];
}
