// Approvals as gateways write them: in a session's state while they are pending, and in the
// arguments of the call afterwards. Missing or invalid fields are empty.

/** @returns {object|null} null if the question is not about a call */
export function approvalOf(given) {
  if (!isObject(given)) return null;
  return {
    agent: textOr(given.agent),
    tool: textOr(given.tool),
    call: textOr(given.call),
    cwd: textOr(given.cwd),
    env: isObject(given.env) ? Object.entries(given.env).map(([name, value]) =>
      [name, String(value)]) : [],
    always: textOr(given.always),
    digest: textOr(given.digest),
    requestedBy: textOr(given.requestedBy),
    forOwner: given.forOwner === true,
    reason: textOr(given.reason),
    isWhole: given.isWhole === true,
  };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const textOr = (value) => (typeof value === "string" ? value : "");
