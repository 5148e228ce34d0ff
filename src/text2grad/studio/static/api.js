// Requests to the studio's own server.

const answer = async response => {
  const found = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(found.error || `the server answered ${response.status}`);
  return found;
};

/** GET /api/PATH with the entries of `query` that are not empty. */
export const get = async (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return answer(await fetch(`/api/${path}${text ? `?${text}` : ""}`));
};

/** POST /api/PATH. */
export const post = async (path, body = {}) => answer(await fetch(`/api/${path}`, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
}));
