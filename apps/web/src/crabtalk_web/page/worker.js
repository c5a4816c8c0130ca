// The service worker: caches the page's own files, so that it opens at once, with or without a
// connection. It caches nothing else: messages are stored sealed by the page.

// The relay inserts the page's version here. Browsers compare only this file, so any change to the
// page must change this line.
const VERSION = "unversioned";
const CACHE = `page-${VERSION}`;
// Started by the page, and so not listed in it.
const STARTED = ["/crypto/blob_worker.js"];
const OWN = /^\/(v[123]|health|worker\.js)(\/|$)/;

self.addEventListener("install", (event) => event.waitUntil(keep()));
self.addEventListener("activate", (event) => event.waitUntil(settle()));
self.addEventListener("fetch", (event) => {
  const address = new URL(event.request.url);
  if (event.request.method !== "GET" || address.origin !== location.origin) return;
  if (OWN.test(address.pathname)) return;
  event.respondWith(answer(event.request, address));
});
self.addEventListener("message", (event) => {
  if (event.data === "take over") self.skipWaiting();
});

/** Caches all files that the page lists, or none: half a page is worse than an old one. */
async function keep() {
  const page = await fetch("/", { cache: "reload" });
  const text = await page.clone().text();
  const named = [...text.matchAll(/(?:href|src)="(\/[^"]+)"/g)].map((found) => found[1]);
  const cache = await caches.open(CACHE);
  await cache.put("/", page);
  const names = [...new Set([...named, ...STARTED])];
  await cache.addAll(names.map((name) => new Request(name, { cache: "no-cache" })));
}

async function settle() {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith("page-") && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function answer(request, address) {
  const cache = await caches.open(CACHE);
  const isPage = request.mode === "navigate" && !/\.[^/]*$/.test(address.pathname);
  const kept = await cache.match(isPage ? "/" : address.pathname);
  return kept ?? fetch(request);
}
