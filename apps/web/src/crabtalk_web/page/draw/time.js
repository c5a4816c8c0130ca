// Formats times, durations and sizes.

const format = (options) => new Intl.DateTimeFormat(undefined, options);
const CLOCK = format({ hour: "2-digit", minute: "2-digit" });
const WEEKDAY = format({ weekday: "short" });
const DAY = format({ day: "numeric", month: "short" });
const DATE = format({ day: "numeric", month: "short", year: "numeric" });
const LONG_DAY = format({ weekday: "long", day: "numeric", month: "long" });
const LONG_DATE = format({ weekday: "long", day: "numeric", month: "long", year: "numeric" });

const midnight = (ms) => new Date(ms).setHours(0, 0, 0, 0);
const daysAgo = (ms, now) => Math.round((midnight(now) - midnight(ms)) / 86_400_000);
const isThisYear = (ms, now) => new Date(ms).getFullYear() === new Date(now).getFullYear();

/** "14:05". */
export const clock = (ms) => CLOCK.format(ms);

/** For a list: "14:05" today, "Mon" within a week, "3 Mar", "3 Mar 2024". */
export function when(ms, now = Date.now()) {
  const days = daysAgo(ms, now);
  if (days === 0) return clock(ms);
  if (days > 0 && days < 7) return WEEKDAY.format(ms);
  return (isThisYear(ms, now) ? DAY : DATE).format(ms);
}

/** "Today", "Yesterday", "Monday, 3 March", and with the year if it is another. */
export function day(ms, now = Date.now()) {
  const days = daysAgo(ms, now);
  if (days === 0) return "Today";
  if (days === 1) return "Yesterday";
  return (isThisYear(ms, now) ? LONG_DAY : LONG_DATE).format(ms);
}

/** Formats a duration: "40 ms", "1.2 s", "2 min 5 s", "1 h 3 min". */
export function duration(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  return elapsed(ms);
}

/** Formats the time since then, in whole seconds. */
export function elapsed(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** "812 bytes", "14 KB", "3.2 MB". */
export function bytes(count) {
  if (!Number.isFinite(count) || count < 0) return "";
  if (count < 1000) return counted(count, "byte");
  const units = ["KB", "MB", "GB", "TB"];
  let value = count / 1000;
  let at = 0;
  while (value >= 999.5 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} ${units[at]}`;
}

/** "1 line", "2 lines". */
export const counted = (count, noun) =>
  `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// ── What goes on ───────────────────────────────────────────────────────────────────────────────

let ticking = 0;

/** Updates elements with `data-since` once a second while there are any. */
export function keepTime() {
  if (ticking) return;
  ticking = setInterval(() => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("[data-since]")) {
      const text = elapsed(Date.now() - Number(element.dataset.since));
      if (element.textContent !== text) element.textContent = text;
    }
  }, 1000);
}
