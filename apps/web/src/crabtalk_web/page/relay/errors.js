// The two errors of a relay: no answer, or a refusal.

/** The relay did not answer. Trying again is right. */
export class AwayError extends Error {
  constructor() {
    super("The relay cannot be reached. Check the connection and try again.");
    this.name = "AwayError";
  }
}

/** The relay refused; `status` is the HTTP status, `code` the reason code of some refusals. */
export class RefusedError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.name = "RefusedError";
    this.status = status;
    this.code = code;
  }

  /** Whether the same request may succeed later. */
  get isPassing() {
    return this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** Returns the answer if it is valid; otherwise the server is not a relay. */
export function expect(isAnswer, answer) {
  if (!isAnswer) throw new AwayError();
  return answer;
}
