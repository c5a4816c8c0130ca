// The only scripts that may be started as workers. The page's policy lets no other text become a
// script (Trusted Types); browsers without Trusted Types use the same list.

const STARTED = new Set(["/worker.js", "/crypto/blob_worker.js"]);

function checked(address) {
  if (!STARTED.has(address)) throw new TypeError("That is no script of this page.");
  return address;
}

const policy = globalThis.trustedTypes?.createPolicy("crabtalk", { createScriptURL: checked });

/**
 * @param {string} address one of those above
 * @returns the value to start a worker from
 */
export function scriptAddress(address) {
  return policy ? policy.createScriptURL(address) : checked(address);
}
