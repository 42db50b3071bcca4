/* How a process names memory of its device to other processes of the machine: bytes that mean something to the vendor's
 * driver alone. */
#pragma once

typedef struct DeviceHandle { char bytes[64]; } DeviceHandle;
