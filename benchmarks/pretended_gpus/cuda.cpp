// GPUs that are pretended, with real numbers: a tensor says cuda:N, its memory is the host's, and each operation is that of
// the CPU on the same memory. A CUDA graph is a list of operations that are repeated. Loaded before torch.
//
// Each CUDA storage has a twin, a CPU storage of the same memory, which its data pointer owns. An operation is given
// tensors of twins; what it returns is a tensor of the argument's own storage if it is a view, or of a new one.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace {
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::Storage;
using c10::StorageImpl;
using c10::Stream;
using c10::StreamId;

constexpr auto CUDA = c10::DeviceType::CUDA;
constexpr int MOST_GPUS = 64;

DeviceIndex gpu_count() {
  const char* words = std::getenv("TIDEMILL_PRETENDED_GPUS");
  return static_cast<DeviceIndex>(words ? std::atoi(words) : 0);
}

// ------------------------------------------------------------------------------------------------ devices and streams

thread_local DeviceIndex current_device = 0;
thread_local std::array<StreamId, MOST_GPUS> current_streams{};
std::atomic<StreamId> last_stream{0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {CUDA, current_device}; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < gpu_count(), "CUDA error: invalid device ordinal");
    current_device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  Stream getStream(Device device) const override {
    return Stream(Stream::UNSAFE, device, current_streams[device.index() < 0 ? current_device : device.index()]);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::UNSAFE, device, 0); }
  Stream getNewStream(Device device, int) const override { return Stream(Stream::UNSAFE, device, ++last_stream); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const override {
    Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return gpu_count(); }
  // Whatever was handed over has been done when the call returned: events and streams have nothing to wait for.
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
Guard guard;
c10::impl::DeviceGuardImplRegistrar registrar(CUDA, &guard);

// ------------------------------------------------------------------------------------------------------------- memory

std::mutex allocated_lock;
std::array<int64_t, MOST_GPUS> allocated_bytes{};

struct Twin {
  Storage cpu;
  DeviceIndex index;
  int64_t bytes;

  Twin(Storage storage, DeviceIndex gpu) : cpu(std::move(storage)), index(gpu), bytes(0) { count(); }
  ~Twin() { count(-bytes); }
  void count() { count(static_cast<int64_t>(cpu.nbytes()) - bytes); }
  void count(int64_t more) {
    std::lock_guard<std::mutex> hold(allocated_lock);
    allocated_bytes[index] += more;
    bytes += more;
  }
  static void drop(void* twin) { delete static_cast<Twin*>(twin); }
};

c10::DataPtr owning(const Storage& cpu, DeviceIndex index) {
  return {cpu.mutable_data(), new Twin(cpu, index), &Twin::drop, Device(CUDA, index)};
}

Twin& twin_of(const StorageImpl& storage) {
  auto* twin = storage.data_ptr().cast_context<Twin>(&Twin::drop);
  TORCH_CHECK(twin, "a CUDA storage that no pretended GPU has made");
  return *twin;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Storage cpu(Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), true);
    return owning(cpu, current_device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
DeviceAllocator device_allocator;
struct SetAllocator {
  SetAllocator() { c10::SetAllocator(CUDA, &device_allocator); }
} set_allocator;

// Pinned memory is known by where it is.
std::mutex pinned_lock;
std::map<uintptr_t, size_t> pinned;

struct PinnedAllocator final : c10::Allocator {
  static void drop(void* memory) {
    {
      std::lock_guard<std::mutex> hold(pinned_lock);
      pinned.erase(reinterpret_cast<uintptr_t>(memory));
    }
    std::free(memory);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (std::max<size_t>(bytes, 1) + 63) / 64 * 64);
    TORCH_CHECK(memory, "no pinned memory of ", bytes, " bytes");
    std::lock_guard<std::mutex> hold(pinned_lock);
    pinned[reinterpret_cast<uintptr_t>(memory)] = std::max<size_t>(bytes, 1);
    return {memory, memory, &drop, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
PinnedAllocator pinned_allocator;

bool is_pinned(const void* memory) {
  std::lock_guard<std::mutex> hold(pinned_lock);
  auto address = reinterpret_cast<uintptr_t>(memory);
  auto after = pinned.upper_bound(address);
  return after != pinned.begin() && address < std::prev(after)->first + std::prev(after)->second;
}

// --------------------------------------------------------------------------------------------------- random numbers

// Its state is a seed and an offset, 16 bytes as a GPU's: each draw is that of a CPU generator seeded from both.
struct CudaGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;

  explicit CudaGenerator(DeviceIndex index)
      : GeneratorImpl(Device(CUDA, index < 0 ? current_device : index), c10::DispatchKeySet(DispatchKey::CUDA)) {}
  static c10::DeviceType device_type() { return CUDA; }
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(), "RNG state is wrong size");
    const auto* words = static_cast<const uint64_t*>(state.data());
    seed_ = words[0], offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({16}, at::kByte);
    auto* words = static_cast<uint64_t*>(state.data_ptr());
    words[0] = seed_, words[1] = offset_;
    return state.getIntrusivePtr();
  }
  CudaGenerator* clone_impl() const override {
    auto* made = new CudaGenerator(device().index());
    made->seed_ = seed_, made->offset_ = offset_;
    return made;
  }
  at::Generator for_one_draw() {
    uint64_t mixed = seed_ + 0x9e3779b97f4a7c15 * (offset_ + 1);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    offset_ += 4;
    return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
  }
};

const at::Generator& default_generator(DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (DeviceIndex each = 0; each < MOST_GPUS; ++each) made->push_back(at::make_generator<CudaGenerator>(each));
    return made;
  }();
  return all->at(index < 0 ? current_device : index);
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return gpu_count() > 0; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return gpu_count(); }
  int getNumGPUs() const override { return gpu_count(); }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex index) const override { guard.setDevice(Device(CUDA, index)); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return guard.exchangeDevice(Device(CUDA, index)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return at::make_generator<CudaGenerator>(index); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  void deviceSynchronize(DeviceIndex) const override {}
};

// ------------------------------------------------------------------------------------------------------------- graphs

struct Recorded {
  c10::OperatorHandle operation;
  std::vector<IValue> arguments;  // of the CPU
  std::vector<at::Tensor> results;  // of the CPU; undefined where it is an argument, or a view of one
};

struct GraphOnHost {
  std::list<Recorded> operations;
  // While it is recorded: what memory was before, because a recording changes nothing; and which memory is its own.
  std::vector<std::pair<Storage, std::string>> before;
  std::unordered_set<const StorageImpl*> seen;
  std::vector<std::pair<at::Generator, uint64_t>> offsets;
};

std::mutex capture_lock;
std::unordered_map<StreamId, GraphOnHost*> captures;
std::atomic<int> capture_count{0};

GraphOnHost* capture_here() {
  if (!capture_count.load()) return nullptr;
  std::lock_guard<std::mutex> hold(capture_lock);
  auto found = captures.find(current_streams[current_device]);
  return found == captures.end() ? nullptr : found->second;
}

// --------------------------------------------------------------------------------------------------------- operations

template <class F>
void each_tensor(const IValue& value, F&& see) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) see(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) see(tensor);
  } else if (value.isList()) {
    for (const IValue& each : value.toListRef()) each_tensor(each, see);
  } else if (value.isTuple()) {
    for (const IValue& each : value.toTupleRef().elements()) each_tensor(each, see);
  }
}

template <class F>
IValue with_tensors(const IValue& value, F&& change) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? change(tensor) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(change(*tensor)) : tensor);
    return list;
  }
  return value;
}

at::Tensor tensor_of(const Storage& storage, const at::Tensor& like, DispatchKey key) {
  auto made = c10::make_intrusive<c10::TensorImpl>(Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return at::Tensor(std::move(made));
}

const std::set<std::string> MIXES = {"aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::index",
                                     "aten::index_put_", "aten::_index_put_impl_", "aten::index_put"};
const std::set<std::string> WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal",
                                     "aten::_unique2", "aten::multinomial", "aten::bincount", "aten::is_nonzero"};

struct Call {
  const c10::OperatorHandle& operation;
  std::optional<Device> device;
  std::unordered_map<const StorageImpl*, Storage> cuda_of;  // by twin
  std::unordered_map<const StorageImpl*, c10::DispatchKeySet> keys_of;  // of the argument with that storage
  std::unordered_map<const c10::TensorImpl*, at::Tensor> argument_of;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;  // argument, and what stands for it

  explicit Call(const c10::OperatorHandle& op) : operation(op) {}

  void find_device(const std::vector<IValue>& arguments) {
    bool host = false;
    for (const IValue& value : arguments)
      each_tensor(value, [&](const at::Tensor& tensor) {
        host = host || (tensor.is_cpu() && tensor.dim() > 0);
        if (!tensor.is_cuda()) return;
        TORCH_CHECK(!device || *device == tensor.device() || MIXES.count(operation.schema().name()),
                    "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                    tensor.device(), "! (", operation.schema().name(), ")");
        if (!device) device = tensor.device();
      });
    TORCH_CHECK(!device || !host || MIXES.count(operation.schema().name()),
                "Expected all tensors to be on the same device, but found at least two devices, ", *device,
                " and cpu! (", operation.schema().name(), ")");
    for (const IValue& value : arguments)
      if (value.isDevice() && value.toDevice().is_cuda()) device = value.toDevice();
    if (!device || device->index() < 0) device = guard.getDevice();
    TORCH_CHECK(device->index() < gpu_count(), "CUDA error: invalid device ordinal");
  }

  at::Tensor stand_in(const at::Tensor& tensor) {
    if (!tensor.is_cuda()) {
      argument_of.emplace(tensor.unsafeGetTensorImpl(), tensor);
      return tensor;
    }
    Storage cuda = tensor.storage();
    const Storage& cpu = twin_of(*cuda.unsafeGetStorageImpl()).cpu;
    cuda_of.emplace(cpu.unsafeGetStorageImpl(), cuda);
    keys_of.emplace(cpu.unsafeGetStorageImpl(), tensor.key_set());
    at::Tensor made = tensor_of(cpu, tensor, DispatchKey::CPU);
    argument_of.emplace(made.unsafeGetTensorImpl(), tensor);
    tensors.emplace_back(tensor, made);
    return made;
  }

  IValue argument(const IValue& value) {
    if (value.isDevice() && value.toDevice().is_cuda()) return Device(c10::DeviceType::CPU);
    if (value.isStorage() && value.toStorage().device().is_cuda()) {
      Storage cuda = value.toStorage(), cpu = twin_of(*cuda.unsafeGetStorageImpl()).cpu;
      cuda_of.emplace(cpu.unsafeGetStorageImpl(), cuda);
      return cpu;
    }
    return with_tensors(value, [&](const at::Tensor& tensor) { return stand_in(tensor); });
  }

  Storage cuda_storage(const Storage& cpu) {
    auto found = cuda_of.find(cpu.unsafeGetStorageImpl());
    if (found != cuda_of.end()) return found->second;
    Storage made(Storage::use_byte_size_t(), cpu.nbytes(), owning(cpu, device->index()), &device_allocator, true);
    cuda_of.emplace(cpu.unsafeGetStorageImpl(), made);
    return made;
  }

  IValue result(const IValue& value) {
    return with_tensors(value, [&](const at::Tensor& tensor) {
      auto found = argument_of.find(tensor.unsafeGetTensorImpl());
      if (found != argument_of.end()) return found->second;
      auto viewed = keys_of.find(tensor.storage().unsafeGetStorageImpl());
      if (viewed == keys_of.end()) return tensor_of(cuda_storage(tensor.storage()), tensor, DispatchKey::CUDA);
      // In inference mode a view of a tensor that is not of it is not of it either.
      auto view = c10::make_intrusive<c10::TensorImpl>(
          c10::TensorImpl::VIEW, cuda_storage(tensor.storage()), viewed->second, tensor.dtype());
      view->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
      return at::Tensor(std::move(view));
    });
  }

  void resize_arguments() {
    for (auto& [tensor, made] : tensors) {
      auto* impl = tensor.unsafeGetTensorImpl();
      Storage cuda = cuda_storage(made.storage());
      auto* storage = cuda.unsafeGetStorageImpl();
      if (storage->data() != made.storage().data() || storage->nbytes() != made.storage().nbytes()) {
        storage->set_data_ptr_noswap(owning(made.storage(), cuda.device().index()));
        storage->set_nbytes(made.storage().nbytes());
      }
      if (impl->storage().unsafeGetStorageImpl() != storage) impl->set_storage_keep_dtype(cuda);
      if (tensor.sizes() != made.sizes() || tensor.strides() != made.strides() ||
          tensor.storage_offset() != made.storage_offset())
        impl->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
    }
  }
};

bool draws(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

// A GPU's generator stays in a recording, where each repeat draws from it; a call gets one of the CPU.
IValue generator_for(const IValue& value, Device device) {
  if (value.isGenerator() && !value.toGenerator().device().is_cuda()) return value;
  at::Generator generator = value.isNone() ? default_generator(device.index()) : value.toGenerator();
  std::lock_guard<std::mutex> hold(generator.mutex());
  return generator.get<CudaGenerator>()->for_one_draw();
}

void note_before(GraphOnHost& graph, const c10::FunctionSchema& schema, const std::vector<IValue>& arguments) {
  for (size_t place = 0; place < arguments.size(); ++place) {
    const auto* alias = schema.arguments()[place].alias_info();
    if (!alias || !alias->isWrite()) continue;
    each_tensor(arguments[place], [&](const at::Tensor& tensor) {
      const Storage& storage = tensor.storage();
      if (graph.seen.insert(storage.unsafeGetStorageImpl()).second)
        graph.before.emplace_back(storage, std::string(static_cast<const char*>(storage.data()), storage.nbytes()));
    });
  }
}

std::atomic<bool> refuses_to_wait{false};

bool copies_and_waits(const c10::FunctionSchema& schema, const std::vector<IValue>& given) {
  if (schema.name() != "aten::copy_") return false;
  return given[0].toTensor().is_cuda() != given[1].toTensor().is_cuda() && !given[2].toBool();
}

void on_the_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  const size_t count = schema.arguments().size();
  std::vector<IValue> given(stack->end() - count, stack->end());
  torch::jit::drop(*stack, count);
  Call call(operation);
  call.find_device(given);
  GraphOnHost* graph = capture_here();
  TORCH_CHECK(!graph || !WAITS.count(schema.name()),
              "CUDA error: operation not permitted when stream is capturing (", schema.name(), ")");
  TORCH_CHECK(!refuses_to_wait.load() || !(WAITS.count(schema.name()) || copies_and_waits(schema, given)),
              "called a synchronizing CUDA operation (", schema.name(), ")");
  std::vector<IValue> arguments;
  std::vector<size_t> generators;
  for (size_t place = 0; place < count; ++place) {
    arguments.push_back(call.argument(given[place]));
    if (draws(schema.arguments()[place])) generators.push_back(place);
  }
  if (graph) note_before(*graph, schema, arguments);
  torch::jit::Stack computed(arguments);
  for (size_t place : generators) {
    at::Generator own = given[place].isNone() ? default_generator(call.device->index()) : given[place].toGenerator();
    if (graph && own.device().is_cuda()) graph->offsets.emplace_back(own, own.get<CudaGenerator>()->get_offset());
    arguments[place] = own;
    computed[place] = generator_for(own, *call.device);
  }
  operation.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), &computed);
  if (graph) {
    std::vector<at::Tensor> results;
    bool does_something = false;
    std::unordered_set<const StorageImpl*> theirs;
    for (const IValue& argument : arguments)
      each_tensor(argument, [&](const at::Tensor& tensor) { theirs.insert(tensor.storage().unsafeGetStorageImpl()); });
    for (const IValue& value : computed)
      each_tensor(value, [&](const at::Tensor& tensor) {
        bool is_new = !theirs.count(tensor.storage().unsafeGetStorageImpl());
        if (is_new) graph->seen.insert(tensor.storage().unsafeGetStorageImpl());
        does_something = does_something || is_new;
        results.push_back(is_new ? tensor : at::Tensor());
      });
    if (schema.name().rfind("aten::empty", 0) && (does_something || schema.is_mutable())) graph->operations.push_back({operation, arguments, results});
  }
  call.resize_arguments();
  for (const IValue& value : computed) stack->push_back(call.result(value));
}

void repeat(GraphOnHost& graph) {
  at::AutoDispatchBelowADInplaceOrView below;
  for (const Recorded& recorded : graph.operations) {
    torch::jit::Stack stack(recorded.arguments);
    for (IValue& value : stack)
      if (value.isGenerator()) value = generator_for(value, value.toGenerator().device());
    recorded.operation.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), &stack);
    size_t place = 0;
    for (const IValue& value : stack)
      each_tensor(value, [&](const at::Tensor& tensor) {
        const at::Tensor& result = recorded.results[place++];
        if (result.defined()) result.copy_(tensor);
      });
  }
}

void does_nothing(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, operation.schema().arguments().size());
}

thread_local std::string last_error;
template <class F>
int attempt(F&& what) {
  try {
    what();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}
}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>()); }

// Those that torch computes by a kernel of the device, or by other operations than on a CPU, unless told.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (const char* name : {"copy_", "convolution", "convolution_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
  library.impl("record_stream", torch::CppFunction::makeFromBoxedFunction<&does_nothing>());
}

// What NCCL would do, gloo does. torch has kernels for it, which need NCCL, and warns where they are replaced.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};
torch::Library exchanges = [] {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard hold(&quiet);
  torch::Library library(torch::Library::IMPL, "c10d", DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name : {"allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_", "barrier"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
  return library;
}();

namespace at {
namespace {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks);
}
}  // namespace at

#pragma GCC visibility push(default)
extern "C" {
const char* pretended_error() { return last_error.c_str(); }
int pretended_device() { return current_device; }
int pretended_set_device(int index) {
  return attempt([&] { guard.setDevice(Device(CUDA, static_cast<DeviceIndex>(index))); });
}
int64_t pretended_new_stream() { return ++last_stream; }
int64_t pretended_stream(int index) { return current_streams[index]; }
void pretended_set_stream(int index, int64_t stream) { current_streams[index] = stream; }
int64_t pretended_allocated(int index) {
  std::lock_guard<std::mutex> hold(allocated_lock);
  return allocated_bytes[index];
}
void pretended_rng(int index, uint64_t* words) {
  auto* generator = default_generator(static_cast<DeviceIndex>(index)).get<CudaGenerator>();
  words[0] = generator->seed_, words[1] = generator->offset_;
}
void pretended_set_rng(int index, const uint64_t* words) {
  auto* generator = default_generator(static_cast<DeviceIndex>(index)).get<CudaGenerator>();
  generator->seed_ = words[0], generator->offset_ = words[1];
}
void pretended_refuse_to_wait(int refuse) { refuses_to_wait = refuse; }
void* pretended_new_graph() { return new GraphOnHost; }
void pretended_drop_graph(void* graph) { delete static_cast<GraphOnHost*>(graph); }
int64_t pretended_operations(void* graph) { return static_cast<int64_t>(static_cast<GraphOnHost*>(graph)->operations.size()); }
int pretended_begin_capture(void* graph, int64_t stream) {
  return attempt([&] {
    TORCH_CHECK(stream, "CUDA error: operation not permitted on the default stream");
    std::lock_guard<std::mutex> hold(capture_lock);
    TORCH_CHECK(captures.emplace(stream, static_cast<GraphOnHost*>(graph)).second, "the stream is being captured already");
    ++capture_count;
  });
}
int pretended_end_capture(int64_t stream) {
  return attempt([&] {
    std::lock_guard<std::mutex> hold(capture_lock);
    auto found = captures.find(stream);
    TORCH_CHECK(found != captures.end(), "the stream is not being captured");
    GraphOnHost& graph = *found->second;
    for (auto& [storage, bytes] : graph.before) std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
    for (auto each = graph.offsets.rbegin(); each != graph.offsets.rend(); ++each)
      each->first.get<CudaGenerator>()->set_offset(each->second);
    graph.before.clear();
    graph.seen.clear();
    graph.offsets.clear();
    captures.erase(found);
    --capture_count;
  });
}
int pretended_replay(void* graph) {
  return attempt([&] { repeat(*static_cast<GraphOnHost*>(graph)); });
}
}
