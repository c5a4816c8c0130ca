// What can go wrong on the way to a relay: nobody is there, or somebody says no.

/** Nobody answered. Trying again is right. */
export class AwayError extends Error {
  constructor() {
    super("The relay cannot be reached. Check the connection and try again.");
    this.name = "AwayError";
  }
}

/** The relay said no; `status` is its number for why, `code` its word for some of them. */
export class RefusedError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.name = "RefusedError";
    this.status = status;
    this.code = code;
  }

  /** Whether the same may be asked again later. */
  get isPassing() {
    return this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** What was answered, if it is an answer: whoever says something else is no relay. */
export function expect(isAnswer, answer) {
  if (!isAnswer) throw new AwayError();
  return answer;
}
