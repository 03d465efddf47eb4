/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: what a peer says of itself: an address (first byte even) or its regions (odd).
 * Whatever it is, the engine takes it or refuses it with a sentence, and the fence ends it.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "lib/engine/engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static struct engine *engine_get(void)
{
	static struct engine *engine;
	static const struct device devices[] = {
		{"loop", "net/a"}, {"loop", "net/b"}, {"loop", "other/c"}};
	const struct engine_options options = {
		.devices = devices, .device_count = 3, .op_bytes = 4096};
	struct ws_error err;
	if (engine == NULL && engine_open(&engine, &options, &err) != 0)
		assert(false);
	return engine;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct engine *engine = engine_get();
	struct writer address = WRITER_INIT(1 << 16);
	struct engine_peer *peer;
	struct ws_error err = {0};
	bool closed;
	if (count == 0)
		return 0;
	int rc = engine_peer_open(engine, "fuzz", &peer, &address, &err);
	assert(rc == 0);
	if (bytes[0] % 2 == 0)
		rc = engine_peer_connect(engine, peer, bytes + 1, count - 1, &err);
	else
		rc = engine_peer_regions(engine, peer, bytes + 1, count - 1, &err);
	assert(rc == 0 || rc == -EPROTO || rc == -ENODEV);
	assert(rc == 0 || (err.code == rc && strlen(err.text) > 10));
	if (rc == 0 && bytes[0] % 2 == 1)
		assert(engine_peer_region_count(peer) <= ENGINE_REGIONS_MAX);
	rc = engine_fence(engine, &closed, &err);
	assert(rc == 0 && closed);
	writer_release(&address);
	return 0;
}
