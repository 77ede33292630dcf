// Shared by the JavaScript clients' checks; the same as harness.py.
import { readFileSync } from "node:fs";

export const URL = process.env.CLIENT_URL;
export const MODEL = "pippin-demo";
export const KNOWN = JSON.parse(readFileSync(process.env.CLIENT_KNOWN, "utf8"));
export const HELLO = KNOWN.texts.Hello;
export const ASK = [{ role: "user", content: "Hello" }];
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1 } },
  required: ["city", "days"],
  additionalProperties: false,
};

export const isWeather = (value) =>
  Object.keys(value).sort().join() === "city,days" && ["Paris", "Rome"].includes(value.city) && value.days >= 1;

export async function run(checks) {
  const only = process.argv.slice(2);
  let failed = 0;
  for (const [check, ask] of Object.entries(checks)) {
    if (only.length && !only.includes(check)) continue;
    const begin = performance.now();
    let why = "";
    try {
      await ask();
    } catch (error) {
      failed += 1;
      why = `${error.name}: ${error.message}`;
      console.error(error);
    }
    console.log(JSON.stringify({ check, why, seconds: Math.round(performance.now() - begin) / 1000 }));
  }
  process.exit(failed ? 1 : 0);
}
