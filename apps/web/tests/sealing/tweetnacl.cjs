// The layouts with plain keys, and the boxes, made and opened by tweetnacl. Reads one JSON object
// {do: name, ...} a line and answers one a line; bytes are base64.
const { createInterface } = require("node:readline");
const nacl = require("tweetnacl");

const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const text = (data) => (data === null ? null : Buffer.from(data).toString("base64"));
const join = (...parts) => new Uint8Array(Buffer.concat(parts.map((part) => Buffer.from(part))));

const verbs = {
  sealSecret({ key, plain }) {
    const nonce = nacl.randomBytes(24);
    return text(join(nonce, nacl.secretbox(bytes(plain), nonce, bytes(key))));
  },
  openSecret({ key, sealed }) {
    const data = bytes(sealed);
    return text(nacl.secretbox.open(data.slice(24), data.slice(0, 24), bytes(key)));
  },
  sealBox({ publicKey, plain }) {
    const once = nacl.box.keyPair();
    const nonce = nacl.randomBytes(24);
    return text(join(once.publicKey, nonce, nacl.box(bytes(plain), nonce, bytes(publicKey), once.secretKey)));
  },
  openBox({ secret, sealed }) {
    const data = bytes(sealed);
    return text(nacl.box.open(data.slice(56), data.slice(32, 56), data.slice(0, 32), bytes(secret)));
  },
  account({ secret }) {
    return text(nacl.sign.keyPair.fromSeed(bytes(secret)).publicKey);
  },
  verify({ publicKey, signature, message }) {
    return nacl.sign.detached.verify(bytes(message), bytes(signature), bytes(publicKey));
  },
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const { do: name, ...given } = JSON.parse(line);
  console.log(JSON.stringify({ answer: verbs[name](given) }));
});
