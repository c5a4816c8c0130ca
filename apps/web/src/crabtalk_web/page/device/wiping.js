// Forgetting everything: after this the browser is as if it had never been here.

// One for both ways: what a tab posts, it does not hear itself.
const channel = new BroadcastChannel("crabtalk");

/** Wipes the database, caches, storages and the service worker. */
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

/** Has `then` called when another tab has wiped everything. */
export function whenWiped(then) {
  channel.onmessage = ({ data }) => data === "wiped" && then();
}
