// CartPole in C++, which plays in a run as a client. It needs protos/tidemill/simulator/v1/simulator.proto, gRPC, and nothing else of
// Tidemill.
//
//   cd examples/simulators/cpp && make
//   ./cartpole 127.0.0.1:7406 [games] [steps of each game] [seed]

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "tidemill/simulator/v1/simulator.grpc.pb.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "observations are sent as little-endian bytes");

namespace simulator = tidemill::simulator::v1;

struct Outcome {
  float reward = 0.0f;
  bool terminated = false;
  bool truncated = false;
};

// The physics of Barto, Sutton and Anderson (1983).
class CartPole {
 public:
  explicit CartPole(std::uint64_t seed) : random_(seed) {}

  void Reset() {
    std::uniform_real_distribution<double> start(-0.05, 0.05);
    for (double& number : state_) number = start(random_);
    steps_ = 0;
  }

  Outcome Push(std::int64_t action) {
    auto& [x, speed, angle, spin] = state_;
    const double force = action == 1 ? 10.0 : -10.0;
    const double thrust = (force + 0.05 * spin * spin * std::sin(angle)) / 1.1;
    const double cosine = std::cos(angle);
    const double turn = (9.8 * std::sin(angle) - cosine * thrust) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    const double push = thrust - 0.05 * turn * cosine / 1.1;
    x += 0.02 * speed;
    speed += 0.02 * push;
    angle += 0.02 * spin;
    spin += 0.02 * turn;
    steps_ += 1;
    const bool has_fallen = std::abs(x) > 2.4 || std::abs(angle) > 12.0 * M_PI / 180.0;
    return {1.0f, has_fallen, steps_ >= 500};
  }

  // Cart position, cart velocity, pole angle and pole angular velocity, as raw float32.
  std::string Observation() const {
    std::array<float, 4> numbers;
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(state_[i]);
    return {reinterpret_cast<const char*>(numbers.data()), sizeof(numbers)};
  }

 private:
  std::mt19937_64 random_;
  std::array<double, 4> state_{};
  int steps_ = 0;
};

// One call, in which each message is answered by one.
class Simulator {
 public:
  Simulator(simulator::SimulatorService::Stub& stub, const std::string& name) {
    context_.set_wait_for_ready(true);  // the run may still be starting
    call_ = stub.Play(&context_);
    simulator::PlayRequest request;
    simulator::Open& open = *request.mutable_open();
    open.set_client(name);
    simulator::Space& space = *open.add_observation();
    space.set_name("observation");
    space.set_dtype("float32");
    space.add_shape(4);
    open.mutable_action()->set_num_actions(2);
    Ask(request);
  }

  // Returns the action, or nothing at the end of an episode.
  std::optional<std::int64_t> Step(std::uint64_t number, std::string observation, Outcome outcome = {}) {
    simulator::PlayRequest request;
    simulator::Step& step = *request.mutable_step();
    step.set_step(number);
    step.add_observation(std::move(observation));
    step.set_reward(outcome.reward);
    step.set_terminated(outcome.terminated);
    step.set_truncated(outcome.truncated);
    const simulator::PlayResponse response = Ask(request);
    if (!response.decision().has_action()) return std::nullopt;
    return response.decision().action().choices(0);
  }

  void Close() {
    call_->WritesDone();
    call_->Finish();
  }

 private:
  simulator::PlayResponse Ask(const simulator::PlayRequest& request) {
    simulator::PlayResponse response;
    if (!call_->Write(request) || !call_->Read(&response)) {
      throw std::runtime_error(call_->Finish().error_message());
    }
    return response;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<simulator::PlayRequest, simulator::PlayResponse>> call_;
};

std::uint64_t Play(simulator::SimulatorService::Stub& stub, std::uint64_t seed, std::uint64_t most_steps) {
  CartPole game(seed);
  Simulator client(stub, "cpp-" + std::to_string(seed));
  std::uint64_t made = 0;
  while (made < most_steps) {
    game.Reset();
    std::uint64_t step = 0;
    auto action = client.Step(step, game.Observation());
    while (action) {
      const Outcome outcome = game.Push(*action);
      made += 1;
      action = client.Step(++step, game.Observation(), outcome);
    }
  }
  client.Close();
  return made;
}

int main(int count, char** words) {
  const auto number = [&](int place, std::uint64_t otherwise) {
    return place < count ? std::strtoull(words[place], nullptr, 10) : otherwise;
  };
  const std::string address = count > 1 ? words[1] : "127.0.0.1:7406";
  const std::uint64_t games = number(2, 8), seed = number(4, 1);
  const std::uint64_t steps = number(3, std::numeric_limits<std::uint64_t>::max());

  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a run is not behind a web proxy
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  auto stub = simulator::SimulatorService::NewStub(channel);
  std::mutex output;
  bool is_good = true;
  std::vector<std::thread> threads;
  for (std::uint64_t game = 0; game < games; ++game) {
    threads.emplace_back([&, game] {
      std::string said;
      bool has_ended = true;
      try {
        said = "played " + std::to_string(Play(*stub, seed + game, steps)) + " steps";
      } catch (const std::runtime_error& error) {
        said = std::string("ended: ") + error.what();
        has_ended = false;
      }
      const std::lock_guard<std::mutex> lock(output);
      std::cout << said << std::endl;
      is_good = is_good && has_ended;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}
