// Drives the page's own account with node: `node page_account.mjs FOLDER SECRET MACHINE WRAPPED SEALED`.
const [folder, secret, machine, wrapped, sealed] = process.argv.slice(2);
const { Account, fromBase64, fromWords, opened, toBase64, toWords } = await import(
  `${folder}/account.js`
);
const me = new Account(fromBase64(secret));
const key = await me.sessionKey(wrapped);
console.log(
  JSON.stringify({
    login: await me.login(new Uint8Array([1, 2, 3])),
    content: toBase64((await me.contentKeys()).public),
    approval: await me.approval(fromBase64(machine)),
    key: toBase64(key),
    value: await opened(key, sealed),
    words: toWords(me.secret),
    back: toBase64(fromWords(toWords(me.secret).toLowerCase())),
    damaged: await me.sessionKey(wrapped.slice(0, -8) + "AAAAAAA="),
  }),
);
