// CartPole in JavaScript, which plays in a run as a client. It was written from protos/tidemill/simulator/v1/simulator.proto alone.
//
//   cd examples/simulators && npm install
//   node cartpole.mjs 127.0.0.1:7406 [games] [steps of each game] [seed]

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

const PROTO = fileURLToPath(
  new URL("../../protos/tidemill/simulator/v1/simulator.proto", import.meta.url),
);
const { SimulatorService } = grpc.loadPackageDefinition(
  protoLoader.loadSync(PROTO, { longs: Number, keepCase: true }),
).tidemill.simulator.v1;

const [address = "127.0.0.1:7406", games = "8", steps = "Infinity", seed = "1"] = process.argv.slice(2);

// The physics of Barto, Sutton and Anderson (1983).
class CartPole {
  constructor(seed) {
    this.random = mulberry32(seed);
  }

  reset() {
    this.state = [0, 0, 0, 0].map(() => this.random() * 0.1 - 0.05);
    this.steps = 0;
    return this.state;
  }

  push(action) {
    const [x, speed, angle, spin] = this.state;
    const thrust = ((action === 1 ? 10 : -10) + 0.05 * spin ** 2 * Math.sin(angle)) / 1.1;
    const turn =
      (9.8 * Math.sin(angle) - Math.cos(angle) * thrust) / (0.5 * (4 / 3 - (0.1 * Math.cos(angle) ** 2) / 1.1));
    const push = thrust - (0.05 * turn * Math.cos(angle)) / 1.1;
    this.state = [x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn];
    this.steps += 1;
    const terminated = Math.abs(this.state[0]) > 2.4 || Math.abs(this.state[2]) > (12 * Math.PI) / 180;
    return { reward: 1, terminated, truncated: this.steps >= 500 };
  }
}

// A client: one call, in which each message is answered by one.
class Simulator {
  constructor(stub, name) {
    this.waiting = [];
    this.call = stub.Play(new grpc.Metadata({ waitForReady: true })); // the run may still be starting
    this.call.on("data", (answer) => this.waiting.shift().resolve(answer));
    this.call.on("error", (error) => this.fail(error));
    this.call.on("end", () => this.fail(new Error("the service ended the call")));
    this.opened = this.ask({
      open: {
        client: name,
        observation: [{ name: "observation", dtype: "float32", shape: [4] }],
        action: { num_actions: 2 },
      },
    });
  }

  ask(message) {
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject });
      this.call.write(message);
    });
  }

  fail(error) {
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  // Returns the action, or null at the end of an episode.
  async step(number, state, { reward = 0, terminated = false, truncated = false } = {}) {
    const observation = [Buffer.from(new Float32Array(state).buffer)]; // little-endian on every machine that has Node
    const { decision } = await this.ask({ step: { step: number, observation, reward, terminated, truncated } });
    return decision.action ? Number(decision.action.choices[0]) : null;
  }
}

async function play(stub, number) {
  const game = new CartPole(number);
  const simulator = new Simulator(stub, `node-${number}`);
  await simulator.opened;
  let made = 0;
  while (made < Number(steps)) {
    let step = 0;
    let action = await simulator.step(step, game.reset());
    while (action !== null) {
      const outcome = game.push(action);
      step += 1;
      made += 1;
      action = await simulator.step(step, game.state, outcome);
    }
  }
  simulator.call.end();
  return made;
}

function mulberry32(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const stub = new SimulatorService(address, grpc.credentials.createInsecure(), {
  "grpc.enable_http_proxy": 0, // a run is not behind a web proxy
});
const played = await Promise.allSettled(
  Array.from({ length: Number(games) }, (_, number) => play(stub, Number(seed) + number)),
);
for (const { status, value, reason: error } of played) {
  // names a value of protos/tidemill/rpc/v1/reason.proto, where one status code has several causes
  const [reason] = error?.metadata?.get("tidemill-reason") ?? [];
  console.log(status === "fulfilled" ? `played ${value} steps` : `ended: ${error.message}${reason ? ` (${reason})` : ""}`);
}
process.exit(played.every(({ status }) => status === "fulfilled") ? 0 : 1);
