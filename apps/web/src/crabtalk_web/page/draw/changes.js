// The differences of two lists: the shortest edit script (Myers), with a limit on the effort.
// Beyond the limit the lists count as entirely different.

const MOST_STEPS = 400;

/**
 * Returns steps in order: {kind: "same" | "removed" | "added", from, to} with indexes into the old
 * and the new list.
 */
export function changes(old, fresh, mostSteps = MOST_STEPS) {
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start += 1;
  let [oldEnd, freshEnd] = [old.length, fresh.length];
  while (oldEnd > start && freshEnd > start && old[oldEnd - 1] === fresh[freshEnd - 1]) {
    oldEnd -= 1;
    freshEnd -= 1;
  }
  const steps = [];
  for (let at = 0; at < start; at += 1) steps.push({ kind: "same", from: at, to: at });
  steps.push(...middle(old, fresh, start, oldEnd, freshEnd, mostSteps));
  for (let at = 0; oldEnd + at < old.length; at += 1) {
    steps.push({ kind: "same", from: oldEnd + at, to: freshEnd + at });
  }
  return steps;
}

function middle(old, fresh, start, oldEnd, freshEnd, mostSteps) {
  const [n, m] = [oldEnd - start, freshEnd - start];
  const trail = n && m ? search(old, fresh, start, n, m, Math.min(mostSteps, n + m)) : null;
  if (trail === null) {
    return [
      ...Array.from({ length: n }, (_, at) => ({ kind: "removed", from: start + at, to: start })),
      ...Array.from({ length: m }, (_, at) => ({ kind: "added", from: oldEnd, to: start + at })),
    ];
  }
  return walkBack(trail, start, n, m);
}

/** Returns the furthest positions for each number of steps up to the end; null beyond the limit. */
function search(old, fresh, start, n, m, most) {
  const size = 2 * most + 3;
  const middleAt = most + 1;
  const reach = new Int32Array(size);
  const trail = [];
  for (let steps = 0; steps <= most; steps += 1) {
    for (let k = -steps; k <= steps; k += 2) {
      const [less, more] = [reach[middleAt + k - 1], reach[middleAt + k + 1]];
      const isDown = k === -steps || (k !== steps && less < more);
      let x = isDown ? more : less + 1;
      while (x < n && x - k < m && old[start + x] === fresh[start + x - k]) x += 1;
      reach[middleAt + k] = x;
      if (x >= n && x - k >= m) {
        trail.push(reach.slice(middleAt - steps - 1, middleAt + steps + 2));
        return trail;
      }
    }
    trail.push(reach.slice(middleAt - steps - 1, middleAt + steps + 2));
  }
  return null;
}

function walkBack(trail, start, n, m) {
  const steps = [];
  let [x, y] = [n, m];
  for (let count = trail.length - 1; count >= 0; count -= 1) {
    const k = x - y;
    let before = k;
    if (count > 0) {
      const reach = trail[count - 1];
      const at = (diagonal) => reach[diagonal + count] ?? -1;
      const isDown = k === -count || (k !== count && at(k - 1) < at(k + 1));
      before = isDown ? k + 1 : k - 1;
      const wasX = at(before);
      const wasY = wasX - before;
      const [afterX, afterY] = isDown ? [wasX, wasY + 1] : [wasX + 1, wasY];
      while (x > afterX && y > afterY) same();
      steps.push({ kind: isDown ? "added" : "removed", from: start + wasX, to: start + wasY });
      [x, y] = [wasX, wasY];
    } else {
      while (x > 0 && y > 0) same();
    }
  }
  return steps.reverse();

  function same() {
    x -= 1;
    y -= 1;
    steps.push({ kind: "same", from: start + x, to: start + y });
  }
}
