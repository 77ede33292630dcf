// Numbers as people read them.

const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"]; // binary, as memory is sold and as macOS shows it

export function bytes(count) {
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(count, 1)) / 10), 0), UNITS.length - 1);
  return power ? `${(count / 1024 ** power).toFixed(1)} ${UNITS[power]}` : `${Math.round(count)} B`;
}

export function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** First and last layer, as people count. */
export const span = ({ start, end }) => (end - start === 1 ? `${start}` : `${start}–${end - 1}`);

export const tokens = (count) => (count % 1024 ? String(count) : `${count / 1024}k`);

/** The long prompts of some models that are being computed, as {done, tokens, rate}; null if there are none. */
export function promptsOf(models) {
  const all = models.map(({ prompts }) => prompts).filter((prompts) => prompts?.tokens);
  const sum = (name) => all.reduce((total, each) => total + each[name], 0);
  return all.length ? { done: sum("done"), tokens: sum("tokens"), rate: sum("tokens_per_second") } : null;
}

export const percent = ({ done, tokens: all }) => `${Math.floor((100 * done) / all)} %`;

/** How far a download is, as "1.2 GB of 4.5 GB, 30.0 MB/s, 2 min left"; `rate` in bytes per second, unknown ones null. */
export function progressText(done, total, rate, left) {
  const known = left !== null && left !== undefined;
  return [`${bytes(done)} of ${bytes(total)}`, rate ? `${bytes(rate)}/s` : "", known ? `${duration(left)} left` : ""]
    .filter(Boolean)
    .join(", ");
}
