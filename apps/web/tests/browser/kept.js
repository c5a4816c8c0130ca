// Returns everything that a browser stores for a page: databases, caches, storage, workers.
async () => {
  const plain = (value, depth) => {
    if (value instanceof CryptoKey) return { key: value.type, extractable: value.extractable };
    if (value instanceof Blob) return { blob: value.size };
    if (value instanceof ArrayBuffer) value = new Uint8Array(value);
    if (ArrayBuffer.isView(value)) {
      const bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
      return { bytes: btoa(String.fromCharCode(...bytes.subarray(0, 4096))) };
    }
    if (Array.isArray(value)) return value.map((one) => plain(one, depth + 1));
    if (value && typeof value === "object" && depth < 8) {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, plain(v, depth + 1)]));
    }
    return value;
  };
  const answered = (request) => new Promise((done, no) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => no(request.error);
  });
  const databases = {};
  for (const { name } of await indexedDB.databases()) {
    const db = await answered(indexedDB.open(name));
    databases[name] = {};
    for (const store of db.objectStoreNames) {
      const rows = await answered(db.transaction(store).objectStore(store).getAll());
      databases[name][store] = rows.map((row) => plain(row, 0));
    }
    db.close();
  }
  return {
    databases,
    local: { ...localStorage },
    session: { ...sessionStorage },
    caches: await caches.keys(),
    workers: (await navigator.serviceWorker.getRegistrations()).length,
    cookies: document.cookie,
  };
}
