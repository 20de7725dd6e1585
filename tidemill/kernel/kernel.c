/* The loops that NumPy and one foreign call a block are too slow for. Plain C without Python's headers: Python loads it
 * with ctypes (tidemill/kernel/__init__.py), which says what each function does. All memory is the caller's.
 *
 * Floating-point results are those of the NumPy code beside each use, bit for bit: the order of every sum is fixed here,
 * and the compiler is told not to fuse a product with a sum (setup.py).
 */

#include <limits.h>
#include <stdint.h>
#include <string.h>

#define FAN_OUT 16                               /* of services/replay/selectors/segment_tree.py */
#define JUST_BELOW_ONE (1.0 - 0x1p-52)           /* of services/replay/selectors/segment_tree.py */
#define EXPORTED __attribute__((visibility("default")))

/* To be raised whenever a function changes: a library of another number is not used. */
EXPORTED int32_t tidemill_kernel_version(void) { return 3; }

/* --- LZ4 blocks --------------------------------------------------------------------------------------------------- */

typedef int (*decompress_whole)(const char *source, char *target, int source_bytes, int raw_bytes);
typedef int (*decompress_partial)(const char *source, char *target, int source_bytes, int wanted_bytes, int room);

/* Decompress the first bytes of a block; return how many, negative for a corrupt one. */
static int64_t decompress(decompress_whole whole, decompress_partial partial, int64_t source, int64_t source_bytes,
                          char *target, int64_t wanted, int64_t raw)
{
    const char *block = (const char *)(intptr_t)source;
    if (source_bytes < 0 || source_bytes > INT_MAX || wanted < 0 || wanted > INT_MAX)
        return -1; /* LZ4 counts in int */
    if (wanted == raw)
        return whole(block, target, (int)source_bytes, (int)wanted);
    return partial(block, target, (int)source_bytes, (int)wanted, (int)wanted);
}

/* Decompress the first bytes of `count` blocks, in order. A block's row has five numbers: address and size of the block,
 * address to fill, bytes wanted, bytes of the whole block. written[i] is what LZ4 returned, negative for a corrupt one. */
EXPORTED void tidemill_decompress(decompress_whole whole, decompress_partial partial, const int64_t *blocks,
                                  int64_t count, int64_t *written)
{
    for (int64_t i = 0; i < count; i++, blocks += 5)
        written[i] =
            decompress(whole, partial, blocks[0], blocks[1], (char *)(intptr_t)blocks[2], blocks[3], blocks[4]);
}

/* Return how many of the first copies are of neighbours that stay side by side, as those of a stack are. */
static int64_t neighbours(const int64_t *copies, int64_t count, int64_t row_bytes)
{
    int64_t rows = 1;
    while (rows < count && copies[2 * rows] == copies[0] + rows * row_bytes &&
           copies[2 * rows + 1] == copies[1] + rows * row_bytes)
        rows++;
    return rows;
}

/* Decompress the first bytes of `count` blocks, one after the other to the same memory, which stays in the processor's
 * cache, and copy rows from there to their places. A block's row has five numbers: address and size of the block, bytes
 * wanted, bytes of the whole block, and how many copies are of it, which follow those of the block before. A copy's has
 * two: bytes before the row in the block, and the address to fill. Of a corrupt block nothing is copied. */
EXPORTED void tidemill_decompress_rows(decompress_whole whole, decompress_partial partial, const int64_t *blocks,
                                       int64_t count, const int64_t *copies, int64_t row_bytes, char *decompressed,
                                       int64_t *written)
{
    for (int64_t i = 0; i < count; i++, blocks += 5) {
        written[i] = decompress(whole, partial, blocks[0], blocks[1], decompressed, blocks[2], blocks[3]);
        const int64_t *end = copies + 2 * blocks[4];
        while (written[i] == blocks[2] && copies < end) {
            int64_t rows = neighbours(copies, (end - copies) / 2, row_bytes);
            memcpy((char *)(intptr_t)copies[1], decompressed + copies[0], (size_t)(rows * row_bytes));
            copies += 2 * rows;
        }
        copies = end;
    }
}

/* --- sum tree: levels[0] are the leaves, each level has 16 entries for one above ------------------------------------- */

/* The order in which NumPy adds 16 numbers that lie side by side. */
static double sum_of_block(const double *w)
{
    double s[8];
    for (int i = 0; i < 8; i++)
        s[i] = w[i] + w[i + 8];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* Set leaves and sum the blocks above them. Return 0, or 1 without a change if a slot is outside of the leaves. */
EXPORTED int32_t tidemill_sum_tree_set(double *const *levels, const int64_t *entries, int64_t level_count,
                                       const int64_t *slots, const double *weights, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (slots[i] < 0 || slots[i] >= entries[0])
            return 1;
    for (int64_t i = 0; i < count; i++)
        levels[0][slots[i]] = weights[i];
    int shift = 0;
    for (int64_t level = 1; level < level_count; level++) {
        shift += 4;
        int64_t last = -1;
        for (int64_t i = 0; i < count; i++) {
            int64_t parent = slots[i] >> shift;
            if (parent != last)
                levels[level][parent] = sum_of_block(levels[level - 1] + parent * FAN_OUT);
            last = parent;
        }
    }
    return 0;
}

/* Return the first of `count` ascending numbers above `target`, or `count`. */
static int64_t first_above(const double *ascending, int64_t count, double target)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ascending[middle] > target)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Return the child of a block that `*target` falls on, and leave in it what remains below that child. */
static int descend(const double *w, double *target)
{
    double cumulative[FAN_OUT];
    cumulative[0] = w[0];
    for (int i = 1; i < FAN_OUT; i++)
        cumulative[i] = cumulative[i - 1] + w[i];
    double most = cumulative[FAN_OUT - 1] * JUST_BELOW_ONE;
    double t = *target > 0.0 ? *target : 0.0; /* rounding may have put it slightly outside */
    t = t < most ? t : most;
    int above = 0; /* children whose cumulative weight exceeds the target */
    for (int i = 0; i < FAN_OUT; i++)
        above += cumulative[i] > t;
    int child = above ? FAN_OUT - above : 0;
    *target = t - (cumulative[child] - w[child]);
    return child;
}

/* Find for each target the first slot whose cumulative weight exceeds it; `cumulative` has room for the top level.
 * The targets are used up. Return 0, or 1 if there is no such slot, as in a tree of zeros. */
EXPORTED int32_t tidemill_sum_tree_find(double *const *levels, const int64_t *entries, int64_t level_count,
                                        double *cumulative, double *targets, int64_t count, int64_t *slots)
{
    const double *top = levels[level_count - 1];
    int64_t top_count = entries[level_count - 1];
    double sum = 0.0;
    for (int64_t i = 0; i < top_count; i++)
        cumulative[i] = sum += top[i];
    for (int64_t i = 0; i < count; i++) {
        if (!(targets[i] < sum * JUST_BELOW_ONE))
            targets[i] = sum * JUST_BELOW_ONE;
        slots[i] = first_above(cumulative, top_count, targets[i]);
        if (slots[i] == top_count)
            return 1;
        targets[i] -= cumulative[slots[i]] - top[slots[i]];
    }
    for (int64_t level = level_count - 2; level >= 0; level--) /* the reads of one level do not wait for each other */
        for (int64_t i = 0; i < count; i++) {
            int64_t first = slots[i] * FAN_OUT;
            if (first >= entries[level])
                return 1; /* only where a weight is not a number */
            slots[i] = first + descend(levels[level] + first, targets + i);
        }
    return 0;
}

/* --- messages of Append: whether they hold no more than they may, found before they are parsed ----------------------- */

/* The fields of a message of protobuf's wire format that lies at `at` to `end`; the newest one that was read. */
struct fields {
    const uint8_t *raw;
    int64_t at, end;
    uint64_t tag;  /* number and wire type */
    int64_t begin; /* of the value, which ends at `at` */
};

/* Read a number; return 0 if it does not end within the message and nine bytes. */
static int read_varint(struct fields *f, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 63 && f->at < f->end; shift += 7) {
        uint8_t byte = f->raw[f->at++];
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return 1;
    }
    return 0;
}

/* Read a field, not looking into its value; return 0 if it does not end within the message, or is none of proto3. */
static int read_field(struct fields *f)
{
    uint64_t size;
    if (!read_varint(f, &f->tag))
        return 0;
    f->begin = f->at;
    switch (f->tag & 7) {
    case 0:
        while (f->at < f->end && f->raw[f->at] > 127)
            f->at++;
        size = 1;
        break;
    case 1:
        size = 8;
        break;
    case 2:
        if (!read_varint(f, &size))
            return 0;
        f->begin = f->at;
        break;
    case 5:
        size = 4;
        break;
    default:
        return 0;
    }
    if (size > (uint64_t)(f->end - f->at))
        return 0;
    f->at += (int64_t)size;
    return 1;
}

/* What an AppendRequest may hold, in this order, or holds. */
struct append_limits {
    int64_t open_bytes;
    int64_t request_fields;
    int64_t data_fields;
    int64_t chunks;
    int64_t chunk_fields; /* of one chunk */
    int64_t blocks;       /* fields of all chunks, with `plain_fields` more for each */
    int64_t items;        /* fields of all batches of items, likewise */
    int64_t list_bytes;   /* of their lists of numbers */
    int64_t plain_fields;
    int64_t lists; /* a bit for the number of each of these lists */
};

struct append_counts {
    int64_t chunks, chunk_fields, batches, batch_fields, list_bytes;
};

enum { OPEN = 1 << 3 | 2, DATA = 2 << 3 | 2, CHUNKS = 1 << 3 | 2, ITEMS = 2 << 3 | 2 }; /* tags of requests.py */

static int chunk_fits(struct fields chunk, const struct append_limits *most, struct append_counts *found)
{
    int64_t count = 0;
    for (; chunk.at < chunk.end; count++)
        if (count == most->chunk_fields || !read_field(&chunk))
            return 0;
    found->chunk_fields += count;
    return ++found->chunks <= most->chunks;
}

static int batch_fits(struct fields batch, const struct append_limits *most, struct append_counts *found)
{
    int64_t all = most->items + most->plain_fields * ++found->batches; /* what batches to come may add is not counted */
    for (; batch.at < batch.end; found->batch_fields++) {
        if (found->batch_fields == all || !read_field(&batch))
            return 0;
        if (batch.tag >> 3 < 63 && most->lists >> (batch.tag >> 3) & 1)
            found->list_bytes += batch.at - batch.begin;
    }
    return 1;
}

static int data_fits(struct fields data, const struct append_limits *most, struct append_counts *found)
{
    for (int64_t count = 0; data.at < data.end; count++) {
        if (count == most->data_fields || !read_field(&data))
            return 0;
        struct fields value = {data.raw, data.begin, data.at, 0, 0};
        if (data.tag == CHUNKS && !chunk_fits(value, most, found))
            return 0;
        if (data.tag == ITEMS && !batch_fits(value, most, found))
            return 0;
    }
    return 1;
}

/* Return 1 if a request holds no more than it may, or 0: then it may hold too much, be malformed, or be good but unlike
 * any that a client writes. */
EXPORTED int32_t tidemill_append_fits(const uint8_t *raw, int64_t size, const struct append_limits *most)
{
    struct append_counts found = {0, 0, 0, 0, 0};
    struct fields request = {raw, 0, size, 0, 0};
    for (int64_t count = 0; request.at < request.end; count++) {
        if (count == most->request_fields || !read_field(&request))
            return 0;
        if (request.tag == OPEN && request.at - request.begin > most->open_bytes)
            return 0;
        struct fields value = {raw, request.begin, request.at, 0, 0};
        if (request.tag == DATA && !data_fits(value, most, &found))
            return 0;
    }
    return found.chunk_fields <= most->blocks + most->plain_fields * found.chunks &&
           found.list_bytes <= most->list_bytes;
}
