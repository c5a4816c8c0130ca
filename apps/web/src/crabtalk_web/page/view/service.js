// The service worker's side of the page: starting it, and hearing that a newer page waits.

import { scriptAddress } from "../trusted.js";

/** @param {(take: () => void) => void} onUpdate called when a newer version waits */
export async function startServiceWorker(onUpdate) {
  if (!navigator.serviceWorker) return;
  const hadOne = Boolean(navigator.serviceWorker.controller);
  let isTaken = false;
  navigator.serviceWorker.addEventListener("controllerchange", () => {
    // The first worker of a visit takes the page over as well; that is no reason to load it again.
    if (hadOne && isTaken) location.reload();
  });
  const registration = await navigator.serviceWorker.register(scriptAddress("/worker.js"));
  const take = (worker) => () => {
    isTaken = true;
    worker.postMessage("take over");
  };
  const look = (worker) => {
    if (worker.state === "installed" && navigator.serviceWorker.controller) onUpdate(take(worker));
  };
  if (registration.waiting) look(registration.waiting);
  registration.addEventListener("updatefound", () => {
    const worker = registration.installing;
    worker?.addEventListener("statechange", () => look(worker));
  });
  addEventListener("focus", () => registration.update().catch(() => undefined));
}
