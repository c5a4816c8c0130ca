// This device's name in lists of devices: `crabtalk-page/Firefox on Linux`. Lists recognize the
// page by the first part; other clients have no replay protection.

export const OWN = "crabtalk-page/";

// The first match counts, because most browsers also claim to be others.
const BROWSERS = { Edg: "Edge", Firefox: "Firefox", Chrome: "Chrome", Safari: "Safari" };
const SYSTEMS = ["Android", "iPhone", "iPad", "Windows", "Mac OS", "Linux"];

export function clientName(agent = navigator.userAgent) {
  const mark = Object.keys(BROWSERS).find((name) => agent.includes(`${name}/`));
  const system = SYSTEMS.find((name) => agent.includes(name));
  return `${OWN}${BROWSERS[mark] ?? "a browser"}${system ? ` on ${system}` : ""}`;
}
