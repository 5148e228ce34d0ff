// Requests to the studio's own server.

/** An answer that did not come, or that refuses. */
export class ServerError extends Error {}

/** The JSON of an answer; an error has its HTTP status, and none if the server was not reached. */
const answer = async response => {
  const { status } = response;
  const data = await response.json().catch(() => null); // the connection broke off
  if (response.ok && data !== null) return data;
  throw Object.assign(new ServerError((data && data.error) || `the server answered ${status}`), { status });
};

const ask = (path, options) => fetch(`/api/${path}`, options).catch(() => { throw new ServerError("the server cannot be reached"); });

/** GET /api/PATH with the entries of `query` that are not empty. */
export const get = async (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return answer(await ask(`${path}${text ? `?${text}` : ""}`));
};

/** POST /api/PATH. */
export const post = async (path, body = {}) => answer(await ask(path, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
}));
