// How this device is called in lists of devices: `crabtalk-page/Firefox on Linux`. By the first
// part a list tells this page from other clients, which have no replay protection.

export const OWN = "crabtalk-page/";

// The first that fits: most browsers say that they are like some other.
const BROWSERS = { Edg: "Edge", Firefox: "Firefox", Chrome: "Chrome", Safari: "Safari" };
const SYSTEMS = ["Android", "iPhone", "iPad", "Windows", "Mac OS", "Linux"];

export function clientName(agent = navigator.userAgent) {
  const mark = Object.keys(BROWSERS).find((name) => agent.includes(`${name}/`));
  const system = SYSTEMS.find((name) => agent.includes(name));
  return `${OWN}${BROWSERS[mark] ?? "a browser"}${system ? ` on ${system}` : ""}`;
}
