// The backup text: the master secret as letters that a person can write down. Base32 in groups of
// five; the digits that Base32 lacks are read as the letters they look like.

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const LOOKS_LIKE = { 0: "O", 1: "I", 8: "B", 9: "G" };
const SIZE = 32;

export function toWords(secret) {
  let bits = "";
  for (const byte of secret) bits += byte.toString(2).padStart(8, "0");
  const letters = bits.match(/.{1,5}/g).map((five) => ALPHABET[parseInt(five.padEnd(5, "0"), 2)]);
  return letters.join("").match(/.{1,5}/g).join("-");
}

/** @returns {Uint8Array|null} null if it cannot be a secret. */
export function fromWords(text) {
  const read = [...text.toUpperCase()].map((letter) => LOOKS_LIKE[letter] ?? letter);
  const letters = read.filter((letter) => ALPHABET.includes(letter));
  const bits = letters.map((letter) => ALPHABET.indexOf(letter).toString(2).padStart(5, "0"));
  const whole = bits.join("").match(/.{8}/g) ?? [];
  return whole.length === SIZE && letters.length === 52
    ? Uint8Array.from(whole, (byte) => parseInt(byte, 2))
    : null;
}
