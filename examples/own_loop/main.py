import asyncio

from outlast import DurableAgentServer, InvocationContext

app = DurableAgentServer()


async def work(context: InvocationContext) -> dict[str, object]:
    for number in range(1, 6):
        await context.emit({"type": "step", "number": number})
        await asyncio.sleep(1)
    return {"text": f"Finished: {context.input}"}


@app.invoke
async def invoke(context: InvocationContext) -> dict[str, object]:
    return await work(context)


@app.recover
async def recover(context: InvocationContext) -> dict[str, object]:
    await context.emit({"type": "recovered", "attempt": context.attempt})
    return await work(context)
