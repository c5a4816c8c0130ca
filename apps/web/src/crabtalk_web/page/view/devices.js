// Devices and machines of the account: who is in, adding one, taking one out.

import { h } from "../draw/dom.js";
import { when } from "../draw/time.js";
import { confirmed } from "./dialog.js";
import { icon } from "./icons.js";
import { invite } from "./invitation.js";
import { notify } from "./notices.js";
import { sentence } from "./task.js";

export function devicesSection(device) {
  const machines = h("div", { class: "stack" }, skeletons());
  const devices = h("div", { class: "stack" }, skeletons());
  let isClosed = false;
  const load = async () => {
    await Promise.all([
      show(machines, () => device.machines(), (found) => machineLines(found)),
      show(devices, () => device.devices(), (found) => deviceLines(found, (one) => revoke(device, one, load))),
    ]);
  };
  const show = async (place, ask, draw) => {
    try {
      const found = await ask();
      if (!isClosed) place.replaceChildren(draw(found));
    } catch (error) {
      if (!isClosed) place.replaceChildren(failed(error, load));
    }
  };
  load();
  const add = h("button", { class: "button", type: "button", onclick: async () => {
    await invite(device);
    if (!isClosed) load();
  } }, icon("plus"), "Add a device");
  const element = h("div", { class: "sheet-group" },
    h("section", { class: "stack" }, h("h2", {}, "Machines"), machines),
    h("section", { class: "stack" }, h("h2", {}, "Devices"),
      h("p", { class: "muted" }, "All that have a token of your account at this relay, machines among them."),
      devices, h("div", { class: "actions" }, add)));
  return { element, close: () => (isClosed = true) };
}

function machineLines(machines) {
  if (!machines.length) {
    return h("p", { class: "muted" }, "None yet. Where your agents run, start ",
      h("code", { class: "command" }, "crabtalk-web up"), " and open the link it prints.");
  }
  return h("ul", { class: "plain rows" }, machines.map((machine) => h("li", { class: "row" },
    icon("machine"),
    h("div", { class: "row-text" }, h("span", {}, machine.name || machine.host || "A machine"),
      h("span", { class: "small muted" }, machine.active ? "Connected" : `Last here ${since(machine.activeAt)}`)))));
}

function deviceLines(devices, takeOut) {
  return h("ul", { class: "plain rows" }, devices.map((one) => h("li", { class: "row" },
    icon(one.kind === "terminal" ? "machine" : "device"),
    h("div", { class: "row-text" },
      h("span", {}, one.isThis ? "This browser" : nameOf(one)),
      h("span", { class: "small muted" }, about(one))),
    one.isThis ? null : h("button", {
      class: "button small danger", type: "button", "aria-label": `Take out ${nameOf(one)}`,
      onclick: () => takeOut(one),
    }, "Take out"))));
}

function nameOf(one) {
  return one.client?.replace(/^web\//, "") || `Device ${one.id.slice(-6)}`;
}

function about(one) {
  const seen = one.lastSeenAt ? `last here ${since(one.lastSeenAt)}` : "";
  const came = one.createdAt ? `Let in ${since(one.createdAt)}` : "";
  return [came, one.isThis ? "" : seen].filter(Boolean).join(", ");
}

async function revoke(device, one, done) {
  const isSure = await confirmed({
    title: "Take this device out?",
    text: "Its token ends at once, and its connection with it. If it is a machine, its agents no longer reach you. A device that was in keeps the keys it had: what you say from now on does not reach it.",
    yes: "Take it out",
    danger: true,
  });
  if (!isSure) return;
  try {
    await device.revoke(one.id);
    notify("It is out.");
  } catch (error) {
    notify(sentence(error));
  }
  done();
}

function since(time) {
  return time ? when(time) : "never";
}

function skeletons() {
  return [1, 2].map(() => h("div", { class: "skeleton long" }));
}

function failed(error, again) {
  return h("div", { class: "stack" }, h("p", { class: "problem", role: "alert" }, sentence(error)),
    h("div", { class: "actions" }, h("button", { class: "button small", type: "button", onclick: again }, "Try again")));
}
