// Makes a CPU build of torch accept fake CUDA tensors, backward passes and generators included. Nothing computes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace {
using c10::DeviceIndex;

c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);

struct CudaGenerator : at::CPUGeneratorImpl {  // draws on the CPU, says that it is a GPU's
  explicit CudaGenerator(DeviceIndex index) : at::CPUGeneratorImpl() {
    device_ = c10::Device(c10::DeviceType::CUDA, index < 0 ? 0 : index);
  }
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
