// Inviting another device: a link with its QR code, valid for five minutes and once. The person
// confirms here after the other device has asked.

import { h } from "../draw/dom.js";
import { renderQr } from "../draw/qr.js";
import { actions, button, field, spinner } from "./controls.js";
import { openDialog } from "./dialog.js";
import { icon } from "./icons.js";
import { announce, notify } from "./notices.js";
import { attempt, doing, problemLine, sentence } from "./task.js";

const HOW = "Scan this with the other device’s camera, or open the link there. Show it to no one "
  + "else: it is half of the key.";
const WHAT_IT_GETS = "It gets your whole account: it will read and write all of your "
  + "conversations. Say yes only if you have just opened the link there yourself.";
const OVER = "This link is over: it holds for five minutes. It was not used.";

/** @returns {Promise<boolean>} whether a device was let in */
export async function invite(device) {
  let invitation = null;
  let timer = 0;
  const isIn = await openDialog("Add a device", (close, dialog) => {
    const place = h("div", { class: "stack" }, doing("Making a link…"));
    const show = (parts) => dialog.isConnected && place.replaceChildren(...parts);
    const offered = async () => {
      invitation = await device.invite();
      if (!dialog.isConnected) return;
      const left = h("p", { class: "small muted" });
      timer = countDown(invitation.expiresAt, left, () => show(told(OVER, close)));
      show(offer(invitation, left, close));
      await invitation.asked;
      clearInterval(timer);
      show(asked(invitation, close));
      announce("A device asks to join.");
      place.querySelector(".primary")?.focus();
    };
    offered().catch((error) => show(told(sentence(error), close)));
    return place;
  });
  clearInterval(timer);
  if (!isIn) await invitation?.cancel();
  return isIn === true;
}

function offer(invitation, left, close) {
  const address = h("input", {
    class: "input mono", readonly: true, id: "invitation-link", value: invitation.url,
    onfocus: () => address.select(),
  });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(invitation.url);
      notify("Copied.");
    } catch {
      address.focus();
    }
  };
  return [
    h("p", {}, HOW),
    h("figure", { class: "qr-frame" }, renderQr(invitation.url)),
    h("div", { class: "with-button" }, field("Link", address), button("Copy", copy)),
    h("p", { class: "doing" }, spinner(), "Waiting for it to ask"),
    left,
    actions(button("Cancel", () => close(false))),
  ];
}

function asked(invitation, close) {
  const problem = problemLine();
  const yes = button("Let it in", async () => {
    if (!(await attempt(yes, "Letting it in", problem, () => invitation.letIn()))) return;
    notify("The device is in.");
    close(true);
  }, "primary");
  return [
    h("p", { class: "done" }, icon("device"), "A device asks to join."),
    h("p", {}, WHAT_IT_GETS),
    problem,
    actions(button("No", () => close(false)), yes),
  ];
}

function told(text, close) {
  return [h("p", { role: "alert" }, text), actions(button("Close", () => close(false)))];
}

function countDown(expiresAt, line, ended) {
  const draw = () => {
    const seconds = Math.max(0, Math.round((expiresAt - Date.now()) / 1000));
    const clock = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    line.textContent = `It holds for ${clock}, for one device.`;
    if (seconds) return;
    clearInterval(timer);
    ended();
  };
  const timer = setInterval(draw, 1000);
  draw();
  return timer;
}
