/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves on a GPU: thousands of them in one launch.  Bit for bit what convert_move does.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include "lib/convert/convert.h"

struct CUstream_st; /* what CUDA's header calls cudaStream_t */
struct device_batch;

/*
 * Room for move_max moves, which may be launched again and again: a table that is the same in each
 * update is added and sent to the GPU once.  Nothing allocates after it.  Thread: one at a time.
 * -ENOTSUP where CUDA isn't built in, -ENODEV, -ENOMEM.
 */
int device_batch_open(struct device_batch **batch_out, int device, uint32_t move_max,
		      struct ws_error *err);
/* Accepts NULL; waits for what was launched, but not for a GPU that is stuck. */
void device_batch_close(struct device_batch *batch);

/*
 * As convert_move, with addresses that the GPU can reach: its own memory, page-locked memory of the
 * host, another GPU's as this process has it mapped.  The move, its blocks and quant are copied.
 * Moves of one batch are carried out in any order and at once: none may read what another one
 * writes (raising the same maxima is fine).  A maximum's address is a multiple of 4.  Nothing that
 * was added before may be under way, unless it has been launched already and isn't cleared.
 * -ENOSPC: the batch is full (a box of more than 2^31 elements takes two places or more).
 * -ENOTSUP: a QUANTIZE_WHOLE of which device_can_whole says no.
 */
int device_batch_add(struct device_batch *batch, const struct move *move, struct ws_error *err);

/*
 * Whether QUANTIZE_WHOLE can be added, and all that convert_ends_block cuts it into, to addresses
 * as aligned as these.  If not (a block has more than 16,384 elements or lies in more than two
 * dims, or rows aren't aligned to 16 bytes): MAXIMA in one launch, and QUANTIZE in a later one.
 */
bool device_can_whole(const struct move *move);

/* Forgets all moves.  None may be under way. */
void device_batch_clear(struct device_batch *batch);

/* On a stream of the batch's device, after what is on it already.  Returns at once.  -EIO: some of
 * it may have been launched. */
int device_batch_launch(struct device_batch *batch, struct CUstream_st *stream,
			struct ws_error *err);
/* Of the last launch: 0 it is done, and what it wrote is visible everywhere; -EAGAIN not yet; -EIO.
 * Never blocks. */
int device_batch_done(struct device_batch *batch, struct ws_error *err);

#endif
