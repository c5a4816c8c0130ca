// How this device is called in lists of devices: `web/Firefox on Linux`.

// The first that fits: most browsers say that they are like some other.
const BROWSERS = { Edg: "Edge", Firefox: "Firefox", Chrome: "Chrome", Safari: "Safari" };
const SYSTEMS = ["Android", "iPhone", "iPad", "Windows", "Mac OS", "Linux"];

export function clientName(agent = navigator.userAgent) {
  const mark = Object.keys(BROWSERS).find((name) => agent.includes(`${name}/`));
  const system = SYSTEMS.find((name) => agent.includes(name));
  return `web/${BROWSERS[mark] ?? "a browser"}${system ? ` on ${system}` : ""}`;
}
