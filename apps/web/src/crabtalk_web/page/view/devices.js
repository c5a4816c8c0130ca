// Devices and machines of the account: list, add, remove.

import { OWN } from "../device/client.js";
import { h } from "../draw/dom.js";
import { when } from "../draw/time.js";
import { actions, button, command } from "./controls.js";
import { confirmed } from "./dialog.js";
import { icon } from "./icons.js";
import { invite } from "./invitation.js";
import { notify } from "./notices.js";
import { sentence } from "./task.js";

const TOKENS = "All that have a token of your account at this relay, machines among them.";
const TAKEN_OUT = "Its token ends at once, and its connection with it. If it is a machine, its "
  + "agents no longer reach you. A device keeps the keys it had: what you say from now on does "
  + "not reach it.";

const UNPROTECTED = "without replay protection";
const UNPROTECTED_HOW = "A relay could leave their messages out, or deliver them late or in another "
  + "order, and no one would notice. Write with this page where that matters.";

export function devicesSection(device) {
  const machines = h("div", { class: "stack" }, skeletons());
  const devices = h("div", { class: "stack" }, skeletons());
  let isClosed = false;
  const show = async (place, ask, draw) => {
    const drawn = await ask().then(draw, (error) => failed(error, load));
    if (!isClosed) place.replaceChildren(drawn);
  };
  const takeOut = (one) => revoke(device, one, load);
  const load = () => Promise.all([
    show(machines, () => device.machines(), machineLines),
    show(devices, () => device.devices(), (found) => deviceLines(found, takeOut)),
  ]);
  const add = button([icon("plus"), "Add a device"], async () => {
    await invite(device);
    if (!isClosed) load();
  });
  load();
  const element = h("div", { class: "sheet-group" },
    h("section", { class: "stack" }, h("h2", {}, "Machines"), machines),
    h("section", { class: "stack" }, h("h2", {}, "Devices"), h("p", { class: "muted" }, TOKENS),
      devices, unprotectedNote(device.sessions), actions(add)));
  return { element, close: () => (isClosed = true) };
}

/** Lists clients that wrote without a counter, and in which sessions. */
function unprotectedNote(sessions) {
  const found = new Map();
  for (const { unprotected, agent } of sessions) {
    for (const client of unprotected) found.set(client, [...(found.get(client) ?? []), agent]);
  }
  if (!found.size) return null;
  const named = [...found].map(([client, agents]) => `${client} (with ${agents.join(", ")})`);
  return h("p", { class: "small muted", role: "note" },
    `Messages were sent by a client ${UNPROTECTED}: ${named.join("; ")}. ${UNPROTECTED_HOW}`);
}

function machineLines(machines) {
  if (!machines.length) {
    return h("p", { class: "muted" }, "None yet. Where your agents run, start ",
      command("crabtalk-web up"), " and open the link it prints.");
  }
  return lines(machines, (machine) => [
    icon("machine"),
    words(machine.name || machine.host || "A machine",
      machine.active ? "Connected" : `Last here ${since(machine.activeAt)}`),
  ]);
}

function deviceLines(devices, takeOut) {
  return lines(devices, (one) => [
    icon(one.kind === "terminal" ? "machine" : "device"),
    words(one.isThis ? "This browser" : nameOf(one), about(one)),
    !one.isThis && button("Take out", () => takeOut(one), "small danger",
      { "aria-label": `Take out ${nameOf(one)}` }),
  ]);
}

function lines(found, draw) {
  return h("ul", { class: "plain lines" },
    found.map((one) => h("li", { class: "line" }, draw(one))));
}

function words(name, told) {
  return h("div", { class: "line-text" }, h("span", {}, name),
    h("span", { class: "small muted" }, told));
}

function nameOf(one) {
  return one.client?.replace(/^(web|crabtalk-page)\//, "") || `Device ${one.id.slice(-6)}`;
}

function about(one) {
  const seen = one.lastSeenAt && !one.isThis ? `last here ${since(one.lastSeenAt)}` : "";
  const came = one.createdAt ? `Let in ${since(one.createdAt)}` : "";
  const isPlain = one.kind !== "terminal" && !one.isThis && !one.client?.startsWith(OWN);
  return [came, seen, isPlain ? `writes ${UNPROTECTED}` : ""].filter(Boolean).join(", ");
}

async function revoke(device, one, done) {
  const asked = { title: "Take this device out?", text: TAKEN_OUT, yes: "Take it out" };
  if (!(await confirmed({ ...asked, danger: true }))) return;
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
    actions(button("Try again", again, "small")));
}
