// Makes a CPU build of torch accept fake CUDA tensors, backward passes and generators included. Nothing computes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

#include <cstring>

namespace {
using c10::DeviceIndex;

c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);

constexpr int64_t kStateBytes = 16;  // seed and offset, as a GPU's generator has

struct CudaGenerator : at::CPUGeneratorImpl {  // draws on the CPU, says that it is a GPU's
  explicit CudaGenerator(DeviceIndex index) : at::CPUGeneratorImpl() {
    device_ = c10::Device(c10::DeviceType::CUDA, index < 0 ? 0 : index);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    uint64_t words[2] = {current_seed_, 0};
    std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size");
    std::memcpy(&current_seed_, state.data(), sizeof(current_seed_));
  }
  void set_current_seed(uint64_t seed) override { current_seed_ = seed; }
  uint64_t current_seed() const override { return current_seed_; }

  uint64_t current_seed_ = c10::default_rng_seed_val;
};

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return c10::impl::kFakeGuardImplMaxDevices; }
  int getNumGPUs() const override { return c10::impl::kFakeGuardImplMaxDevices; }
  DeviceIndex current_device() const override { return guard.getDevice().index(); }
  DeviceIndex getCurrentDevice() const override { return guard.getDevice().index(); }
  void setCurrentDevice(DeviceIndex index) const override {
    guard.setDevice(c10::Device(c10::DeviceType::CUDA, index));
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return guard.exchangeDevice(c10::Device(c10::DeviceType::CUDA, index)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<CudaGenerator>(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static at::Generator generator = at::make_generator<CudaGenerator>(0);
    return generator;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};
}  // namespace
namespace at {
namespace {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks);
}
}  // namespace at
