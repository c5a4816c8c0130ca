// Describes the focused element as a screen reader would, and whether its focus is visible.
() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const label = element.labels?.[0]?.innerText ?? "";
  const name = element.ariaLabel || label || element.innerText || element.title || "";
  const isRinged = ({ outlineStyle, outlineWidth, boxShadow }) =>
    (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
  let isSeen = false;
  // A field may leave its focus ring to its container.
  for (let at = element, n = 0; at && n < 4 && !isSeen; at = at.parentElement, n += 1) {
    isSeen = isRinged(getComputedStyle(at));
  }
  return { name: name.trim(), isSeen };
}
