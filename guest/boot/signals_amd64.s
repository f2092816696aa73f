#include "textflag.h"

// func dropSignal: the handler of a signal that is to have no effect.
TEXT ·dropSignal(SB),NOSPLIT|NOFRAME,$0-0
	RET

// func dropSignalAddress() uintptr
TEXT ·dropSignalAddress(SB),NOSPLIT,$0-8
	LEAQ ·dropSignal(SB), AX
	MOVQ AX, ret+0(FP)
	RET
