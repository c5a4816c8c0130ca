// The numbers of a session's messages on this device: spans without gaps, `[low, high]`, the
// earliest first.

/** Adds a span, and merges spans that touch. */
export function withSpan(spans, low, high) {
  const apart = spans.filter(([from, to]) => to < low - 1 || high + 1 < from);
  const near = spans.filter(([from, to]) => !(to < low - 1 || high + 1 < from));
  const whole = [
    Math.min(low, ...near.map(([from]) => from)),
    Math.max(high, ...near.map(([, to]) => to)),
  ];
  return [...apart, whole].sort((a, b) => a[0] - b[0]);
}

/** Returns the span that contains a number, or null. */
export function spanOf(spans, seq) {
  return spans.find(([low, high]) => low <= seq && seq <= high) ?? null;
}

/** Returns the missing numbers below the latest span: `[low, high]`, or null. */
export function latestHole(spans) {
  const last = spans.at(-1);
  if (!last || last[0] <= 1) return null;
  return [(spans.at(-2)?.[1] ?? 0) + 1, last[0] - 1];
}
