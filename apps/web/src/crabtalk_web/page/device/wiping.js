// Deletes everything this page has stored in the browser.

// One channel for both directions: a tab does not receive its own messages.
const channel = new BroadcastChannel("crabtalk");

/** Deletes the database, caches, storages and the service worker. */
export async function wipe(store) {
  await store.wipe();
  localStorage.clear();
  sessionStorage.clear();
  if (globalThis.caches) {
    for (const name of await caches.keys()) await caches.delete(name);
  }
  const workers = await navigator.serviceWorker?.getRegistrations?.().catch(() => []);
  for (const worker of workers ?? []) await worker.unregister();
  channel.postMessage("wiped");
}

/** Calls `then` when another tab has deleted everything. */
export function whenWiped(then) {
  channel.onmessage = ({ data }) => data === "wiped" && then();
}
