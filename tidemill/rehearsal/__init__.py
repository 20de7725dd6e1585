"""Rehearses what runs on GPUs where there is none: a CPU build of torch is made to accept CUDA tensors.

Nothing is computed. What is seen is where each tensor would lie, what the host would wait for, what a CUDA graph may
not hold, which GPU each thread opens, and how many kernels an update launches. Not seen are numbers, speed, drivers,
races between streams, and NCCL.

The library must be there before torch is (`tidemill.rehearsal.library`), so a rehearsal is a separate process.
"""
