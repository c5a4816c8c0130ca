// The page's side of the service worker: starts it, and reports new versions.

import { scriptAddress } from "../trusted.js";

/** @param {(take: () => void) => void} onUpdate called when a new version is available */
export async function startServiceWorker(onUpdate) {
  if (!navigator.serviceWorker) return;
  const hadOne = Boolean(navigator.serviceWorker.controller);
  let isTaken = false;
  navigator.serviceWorker.addEventListener("controllerchange", () => {
    // The first worker of a visit also takes control; that is no reason to reload.
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
