// An invitation: a link and its code for one more device, five minutes, once. The person says yes
// here, after the other device has asked.

import { h } from "../draw/dom.js";
import { renderQr } from "../draw/qr.js";
import { openDialog } from "./dialog.js";
import { icon } from "./icons.js";
import { announce, notify } from "./notices.js";
import { attempt, doing, isBusy, problemLine, sentence } from "./task.js";

export async function invite(device) {
  let invitation = null;
  let timer = 0;
  const isIn = await openDialog("Add a device", (close, dialog) => {
    const place = h("div", { class: "stack" }, doing("Making a link…"));
    device.invite().then((made) => {
      invitation = made;
      if (!dialog.isConnected) return made.cancel();
      const left = h("p", { class: "small muted" });
      timer = countDown(made.expiresAt, left, () => place.replaceChildren(...over(close)));
      place.replaceChildren(...offer(made, left, close));
      return made.asked.then(() => {
        clearInterval(timer);
        place.replaceChildren(...asked(made, close));
        announce("A device asks to join.");
        place.querySelector("button")?.focus();
      });
    }).catch((error) => {
      if (dialog.isConnected) place.replaceChildren(...failed(error, close));
    });
    return place;
  });
  clearInterval(timer);
  if (!isIn) await invitation?.cancel();
  return isIn === true;
}

function offer(invitation, left, close) {
  const link = h("input", { class: "input mono", readonly: true, id: "invitation-link", value: invitation.url });
  link.addEventListener("focus", () => link.select());
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(invitation.url);
      notify("Copied.");
    } catch {
      link.focus();
    }
  };
  return [
    h("p", {}, "Scan this with the other device’s camera, or open the link there. Show it to nobody else: it is half of the key."),
    h("figure", { class: "qr-frame" }, renderQr(invitation.url)),
    h("div", { class: "field" }, h("label", { for: "invitation-link" }, "Link"),
      h("div", { class: "with-button" }, link,
        h("button", { class: "button", type: "button", onclick: copy }, "Copy"))),
    h("div", { class: "doing" }, h("span", { class: "spinner", "aria-hidden": "true" }),
      h("span", {}, "Waiting for it to ask")),
    left,
    h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: () => close(false) }, "Cancel")),
  ];
}

function asked(invitation, close) {
  const problem = problemLine();
  const yes = h("button", { class: "button primary", type: "button" }, "Let it in");
  yes.addEventListener("click", async () => {
    if (isBusy(yes)) return;
    const isIn = await attempt(yes, "Letting it in", problem, () => invitation.letIn());
    if (!isIn) return;
    notify("The device is in.");
    close(true);
  });
  return [
    h("p", { class: "done" }, icon("device"), "A device asks to join."),
    h("p", {}, "It gets your whole account: it will read and write all of your conversations. Say yes only if you have just opened the link there yourself."),
    problem,
    h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: () => close(false) }, "No"), yes),
  ];
}

function over(close) {
  return [
    h("p", {}, "This link is over: it holds for five minutes. Nobody has used it."),
    h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: () => close(false) }, "Close")),
  ];
}

function failed(error, close) {
  return [
    h("p", { class: "problem", role: "alert" }, sentence(error)),
    h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: () => close(false) }, "Close")),
  ];
}

function countDown(expiresAt, line, ended) {
  const draw = () => {
    const seconds = Math.max(0, Math.round((expiresAt - Date.now()) / 1000));
    line.textContent = `It holds for ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}, for one device.`;
    if (!seconds) {
      clearInterval(timer);
      ended();
    }
  };
  const timer = setInterval(draw, 1000);
  draw();
  return timer;
}
