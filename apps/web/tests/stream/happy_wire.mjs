// Reads JSON lines {schema, value}; answers each with true or false: whether happy-wire accepts it.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const wire = createRequire(`${process.argv[2]}/`)('@slopus/happy-wire');
for await (const line of createInterface({ input: process.stdin })) {
  const { schema, value } = JSON.parse(line);
  console.log(wire[schema].safeParse(value).success);
}
