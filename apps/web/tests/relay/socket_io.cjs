// A device and a gateway with npm's socket.io-client: connect, receive, change, call, answer.
// Arguments: the relay's address, a token, a session. Prints one JSON object.
const { io } = require("socket.io-client");

const [url, token, session] = process.argv.slice(2);
const open = (auth) =>
  new Promise((resolve, reject) => {
    const socket = io(url, { path: "/v1/updates", transports: ["websocket"], reconnection: false, auth });
    socket.on("connect", () => resolve(socket));
    socket.on("connect_error", (error) => reject(error));
  });
const heard = (socket, kind) =>
  new Promise((resolve) => {
    socket.on("update", (update) => update.body.t === kind && resolve(update.body));
  });

async function main() {
  const told = {};
  told.refused = await open({ token: "wrong" }).then(() => "", (error) => error.message);
  const phone = await open({ token, clientType: "user-scoped" });
  const gateway = await open({ token, clientType: "session-scoped", sessionId: session });
  const message = heard(phone, "new-message");
  const metadata = heard(phone, "update-session");
  const sent = { sid: session, message: "c2VhbGVk", localId: "from node" };
  told.sent = await gateway.timeout(20000).emitWithAck("message", sent);
  told.message = await message;
  const change = { sid: session, metadata: "c2VhbGVk", expectedVersion: 0 };
  told.changed = await gateway.timeout(20000).emitWithAck("update-metadata", change);
  told.late = await gateway.timeout(20000).emitWithAck("update-metadata", change);
  told.unknown = await gateway.timeout(20000).emitWithAck("update-metadata", { ...change, sid: "none" });
  told.metadata = await metadata;
  gateway.on("rpc-request", (request, answer) => answer(request.params + request.params));
  const registered = new Promise((resolve) => gateway.on("rpc-registered", resolve));
  gateway.emit("rpc-register", { method: `${session}:echo` });
  told.registered = await registered;
  const call = { method: `${session}:echo`, params: "abcd" };
  told.called = await phone.timeout(20000).emitWithAck("rpc-call", call);
  const large = { ...sent, message: "A".repeat(2_000_000), localId: "large" };
  told.large = await phone.timeout(20000).emitWithAck("message", large);
  phone.disconnect();
  gateway.disconnect();
  console.log(JSON.stringify(told));
}

main();
