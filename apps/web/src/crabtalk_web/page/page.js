// The page: lets machines in, and lists sessions. It talks to the relay it came from and nobody else.

import {
  Account, fromBase64, fromBase64url, fromWords, opened, toBase64, toWords,
} from "./account.js";

const KEY = "crabtalk.secret";
const find = (id) => document.getElementById(id);
let token = "";

function say(text) {
  find("status").textContent = text;
}

async function ask(method, path, body) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.message ?? told.error ?? answer.statusText);
  return told;
}

function account() {
  const kept = localStorage.getItem(KEY);
  if (kept) return new Account(fromBase64(kept));
  const secret = crypto.getRandomValues(new Uint8Array(32));
  localStorage.setItem(KEY, toBase64(secret));
  return new Account(secret);
}

async function logIn(me) {
  const { nonce } = await ask("POST", "/v1/auth/nonce", {});
  ({ token } = await ask("POST", "/v1/auth", await me.login(fromBase64(nonce))));
}

async function list(me) {
  const { sessions } = await ask("GET", "/v1/sessions");
  const rows = [];
  for (const session of sessions) {
    const key = session.dataEncryptionKey && (await me.sessionKey(session.dataEncryptionKey));
    const metadata = key && (await opened(key, session.metadata));
    const row = document.createElement("li");
    const title = metadata?.summary?.text ?? "";
    const name = metadata ? `${metadata.name ?? "?"} on ${metadata.host}` : "sealed for another account";
    row.textContent = [name, title, `${session.seq} messages`].filter(Boolean).join(" · ");
    rows.push(row);
  }
  find("sessions").replaceChildren(...rows);
  find("account").hidden = false;
  say(rows.length ? "" : "There are no sessions yet.");
}

function machineKey() {
  const found = /#key=([\w-]+)$/.exec(location.href);
  return found && fromBase64url(found[1]);
}

async function letIn(me, key) {
  const publicKey = toBase64(key);
  await ask("POST", "/v1/auth/response", { publicKey, response: await me.approval(key) });
  history.replaceState(null, "", "/");
  find("pairing").hidden = true;
  say("It is in. Its sessions come in a moment.");
  setTimeout(() => list(me).catch((error) => say(error.message)), 3000);
}

async function start() {
  if (!globalThis.crypto?.subtle) {
    say("A browser keeps keys only on a page that came by https, or from this machine.");
    return;
  }
  const me = account();
  await logIn(me);
  const key = machineKey();
  if (key) {
    find("pairing").hidden = false;
    find("approve").onclick = () => letIn(me, key).catch((error) => say(error.message));
    find("approve").focus();
  }
  find("reveal").onclick = () => {
    find("secret").textContent = toWords(me.secret);
    find("secret").hidden = false;
  };
  find("restore").onsubmit = (event) => {
    event.preventDefault();
    const secret = fromWords(find("other").value);
    if (!secret) return say("That is no secret: it has 52 letters and digits.");
    localStorage.setItem(KEY, toBase64(secret));
    return location.reload();
  };
  await list(me);
}

start().catch((error) => say(error.message));
