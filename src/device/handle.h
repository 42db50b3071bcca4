/* A handle with which a process gives other processes of the machine access to its device memory.
 * Only the vendor's driver interprets the bytes. */
#pragma once

typedef struct DeviceHandle { char bytes[64]; } DeviceHandle;
