// A service in TypeScript whose model answers once; service.ts has its answers graded.
//
//   npm install && npm run contract && npm run build
//   OPENAI_API_KEY=... npm run before

/** The part of a chat completion that is read. */
interface Completion {
  choices: { message: { content: string | null } }[];
}

const response = await fetch(`${process.env.OPENAI_BASE_URL ?? "https://api.openai.com/v1"}/chat/completions`, {
  method: "POST",
  headers: { "content-type": "application/json", authorization: `Bearer ${process.env.OPENAI_API_KEY}` },
  body: JSON.stringify({
    model: process.env.MODEL ?? "gpt-5-mini",
    messages: [
      { role: "system", content: "You answer the customers of a bicycle shop." },
      { role: "user", content: "The chain of my new bike has snapped after two days. What now?" },
    ],
  }),
});
if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
const completion = (await response.json()) as Completion;
console.log(completion.choices[0]?.message.content);
